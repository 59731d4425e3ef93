"""Programs of OpenVINO: bound by position in the caller's memory, refused in one message."""

import gc
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from campo_onnx.runtime.openvino.installed import openvino_problem

if problem := openvino_problem():
    pytest.skip(problem, allow_module_level=True)

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.api import LoadSettings, Place
from campo_onnx.runtime.host_tensor import HostTensor
from campo_onnx.runtime.openvino import blobs
from campo_onnx.runtime.openvino.runtime import RUNTIME
from tests.conftest import parse_model

FLOAT, BF16 = int(TensorProto.FLOAT), int(TensorProto.BFLOAT16)
# An input that nothing reads, one whose Cast is removed, one of which only the shape is read, one returned.
PORTS = """
agraph (float[3] unread, float[2,3] x, float[3,2] shaped, float[4] b, bfloat16[4] low)
    => (float[3,2] y, float[2,3] r, float[4] same, bfloat16[4] twice) {
  cx = Cast <to = 1> (x)
  r = Relu (cx)
  shape = Shape (shaped)
  y = Reshape (r, shape)
  same = Identity (b)
  twice = Add (low, low)
}
"""
SQUARE = "agraph (float[4,4] a, float[4,4] w) => (float[4,4] c) { c = MatMul (a, w) }"


def load(graph, opset=22, **settings):
    return RUNTIME.load(parse_model(graph, opset), "cpu", settings=LoadSettings(**settings))


def tensor(array):
    host_tensor = HostTensor.zeros(array.shape, onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
    host_tensor.write(array)
    return host_tensor


@pytest.fixture
def arrays(bf16_units):
    low = np.asarray([1, 2, 3, 4]).astype(helper.tensor_dtype_to_np_dtype(BF16))
    return {
        "unread": np.zeros(3, np.float32),
        "x": np.arange(-3, 3, dtype=np.float32).reshape(2, 3),
        "shaped": np.zeros((3, 2), np.float32),
        "b": np.arange(4, dtype=np.float32),
        "low": low,
    }


def expected(arrays):
    relu = np.maximum(arrays["x"], 0)
    return {"y": relu.reshape(3, 2), "r": relu, "same": arrays["b"], "twice": arrays["low"] * 2}


def test_outputs_have_their_names(arrays):
    values = load(PORTS).run(arrays)
    assert values.keys() == expected(arrays).keys()
    for name, value in expected(arrays).items():
        assert values[name].dtype == value.dtype
        np.testing.assert_array_equal(values[name], value)


def test_memory_of_the_caller_is_read_and_written_in_place(arrays):
    reads = {name: tensor(array) for name, array in arrays.items()}
    writes = {"y": HostTensor.zeros((3, 2), FLOAT), "twice": HostTensor.zeros((4,), BF16)}
    step = load(PORTS).bound(reads, writes)
    step()
    np.testing.assert_array_equal(writes["y"].shared(), expected(arrays)["y"])
    reads["x"].shared()[...] = 7
    reads["low"].shared()[...] = 9
    step()
    np.testing.assert_array_equal(writes["y"].read(), np.full((3, 2), 7))
    np.testing.assert_array_equal(writes["twice"].read().astype(np.float32), np.full(4, 18))


def test_bindings_keep_their_memory_and_do_not_mix(arrays):
    program = load(PORTS)
    steps = []
    for scale in (1, 2):
        own = {name: tensor((array * scale).astype(array.dtype)) for name, array in arrays.items()}
        result = {"twice": HostTensor.zeros((4,), BF16), "r": HostTensor.zeros((2, 3), FLOAT)}
        steps.append((program.bound(own, result), result, scale))
    del own
    gc.collect()
    rubbish = [np.full(4, 77, np.uint16) for _ in range(1000)]  # what memory that nobody holds would be
    for step, result, scale in steps:
        step()
        np.testing.assert_array_equal(result["r"].read(), expected(arrays)["r"] * scale)
        wanted = expected(arrays)["twice"].astype(np.float32) * scale
        np.testing.assert_array_equal(result["twice"].read().astype(np.float32), wanted)
    assert rubbish


def test_a_program_runs_on_addresses_that_change(arrays):
    program = load(PORTS)
    places = {
        n: Place(n, int(helper.np_dtype_to_tensor_dtype(a.dtype)), a.shape, "cpu") for n, a in arrays.items()
    }
    results = expected(arrays)
    writes = [
        Place(n, int(helper.np_dtype_to_tensor_dtype(a.dtype)), a.shape, "cpu") for n, a in results.items()
    ]
    step = program.addressed([places[n] for n in reversed(arrays)], writes[::-1])
    for scale in (1, 2, 1):
        own = {name: (array * scale).astype(array.dtype) for name, array in arrays.items()}
        memory = {name: np.full_like(array, 9) for name, array in results.items()}
        step.run(
            [own[name].ctypes.data for name in reversed(arrays)],
            [memory[place.name].ctypes.data for place in writes[::-1]],
        )
        for name, value in expected(own).items():
            np.testing.assert_array_equal(memory[name].astype(np.float32), value.astype(np.float32))


def test_scalars_have_addresses_too():
    graph = """
    agraph (int64 n, bool[2] c) => (int64 m, bool[2] d) {
      m = Add (n, n)
      d = Not (c)
    }
    """
    int64, boolean = int(TensorProto.INT64), int(TensorProto.BOOL)
    reads = [Place("n", int64, (), "cpu"), Place("c", boolean, (2,), "cpu")]
    writes = [place._replace(name=name) for place, name in zip(reads, "md", strict=True)]
    memory = [np.asarray(21), np.asarray([True, False])]
    written = [np.asarray(0), np.asarray([True, True])]
    load(graph).addressed(reads, writes).run(*([a.ctypes.data for a in side] for side in (memory, written)))
    assert written[0] == 42
    assert written[1].tolist() == [False, True]


def test_addresses_elsewhere_and_missing_ones_are_refused():
    program = load(SQUARE)
    a, w, c = (Place(name, FLOAT, (4, 4), "cpu") for name in "awc")
    with pytest.raises(UnsupportedModelError, match=r"1 inputs of the graph are not bound: .*'w'"):
        program.addressed([a], [c])
    with pytest.raises(UnsupportedModelError, match=r"1 outputs of the graph are not bound: .*'c'"):
        program.addressed([a, w], [])
    with pytest.raises(UnsupportedModelError, match="'w' is not in the host's memory"):
        program.addressed([a, w._replace(processor="cuda")], [c])


def test_slices_of_one_buffer_are_bound():
    buffer = HostTensor.zeros((40,), FLOAT)
    buffer.shared()[:32] = np.concatenate([np.eye(4).ravel(), np.arange(16)])
    reads = {"a": buffer.slice(0, (4, 4)), "w": buffer.slice(16, (4, 4))}
    result = HostTensor.zeros((20,), FLOAT)
    load(SQUARE).bound(reads, {"c": result.slice(4, (4, 4))})()
    np.testing.assert_array_equal(result.read(), [0] * 4 + list(range(16)))
    with pytest.raises(ValueError, match="elements 32 to 48 of a tensor of 40"):
        buffer.slice(32, (4, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": None}, "1 inputs of the graph are not bound: a value is missing for 'a'"),
        ({"z": np.zeros(1, np.float32)}, "does not have the input 'z'"),
        (
            {"a": np.zeros((4, 5), np.float32)},
            r"'a' does not fit: it is f32\[4, 5\], and the graph has f32\[4,4\]",
        ),
        ({"a": np.zeros((4, 4))}, r"it is f64\[4, 4\]"),
    ],
)
def test_what_does_not_fit_is_told(change, message):
    feeds = {"a": np.zeros((4, 4), np.float32), "w": np.zeros((4, 4), np.float32)} | change
    with pytest.raises(UnsupportedModelError, match=message):
        load(SQUARE).run({name: value for name, value in feeds.items() if value is not None})


def test_every_refused_operator_is_in_one_message():
    graph = """
    agraph (float[2,8] x, float ratio) => (float[2,8] y) {
      training = Constant <value = bool {1}> ()
      a = com.microsoft.GatedAdd (x, x)
      b = com.microsoft.GeluGrad (a, x)
      y, mask = Dropout (b, ratio, training)
    }
    """
    with pytest.raises(UnsupportedModelError) as raised:
        load(graph, 20)
    message = str(raised.value)
    assert message.startswith(
        "OpenVINO refuses 3 operators of the graph: Dropout: at 'y, mask': Training mode is not supported"
    )
    for part in (
        "com.microsoft.GatedAdd",
        "com.microsoft.GeluGrad",
        "RandomUniformLike",
        "without a target",
    ):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "graph",
    [
        "agraph (float16[4] x) => (float16[4] y) { y = Relu (x) }",
        "agraph (float[4] x) => (float[4] y) { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }",
        """agraph (float[4] x, bool c) => (float[4] y) {
          y = If (c) <then_branch = g () => (float[4] t) { h = Cast <to = 10> (x) t = Cast <to = 1> (h) },
                      else_branch = g () => (float[4] e) { e = Identity (x) }>
        }""",
    ],
    ids=["inputs", "casts", "bodies"],
)
def test_fp16_is_refused_since_it_would_not_be_rounded(graph):
    with pytest.raises(UnsupportedModelError, match="removes FP16 types without rounding"):
        load(graph)


def test_constants_beside_the_graph_are_read(tmp_path):
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    model = parse_model("agraph (float[4,4] a) => (float[4,4] c) { c = MatMul (a, w) }")
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    program = RUNTIME.load(model, "cpu", folder=tmp_path)
    np.testing.assert_allclose(program.run({"a": np.eye(4, dtype=np.float32)})["c"], weights, rtol=1e-6)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(UnsupportedModelError, match=r"'w.bin' cannot be read: there is no such file"):
        RUNTIME.load(model, "cpu", folder=tmp_path)


def test_a_graph_too_large_for_a_message_is_told(monkeypatch):
    def too_large(self):
        raise ValueError("Message onnx.ModelProto exceeds maximum protobuf size of 2GB")

    from campo_onnx.runtime.openvino import program

    monkeypatch.setattr(program, "refuse_types", lambda *_: None)

    class Large:
        graph = parse_model(SQUARE).graph
        functions = ()
        SerializeToString = too_large

    with pytest.raises(UnsupportedModelError, match=r"larger than 2 GB.*save_as_external_data"):
        RUNTIME.load(Large(), "cpu")


def test_the_oldest_compiled_graphs_go_first(tmp_path):
    import os

    for age, name in enumerate(("new", "old", "oldest")):
        (tmp_path / f"{name}.blob").write_bytes(bytes(10))
        os.utime(tmp_path / f"{name}.blob", (1000 - age, 1000 - age))
    blobs.make_room(tmp_path, 25)
    assert {path.stem for path in tmp_path.iterdir()} == {"new", "old"}


def test_large_graphs_are_compiled_once():
    nodes = " ".join(f"x{i + 1} = Tanh (x{i})" for i in range(250))
    graph = f"agraph (float[8] x0) => (float[8] x250) {{ {nodes} }}"
    feeds = {"x0": np.ones(8, np.float32)}
    first = load(graph).run(feeds)
    folder = blobs.blob_folder()
    compiled = {path: path.stat().st_mtime_ns for path in folder.glob("*.blob")}
    assert compiled
    second = load(graph).run(feeds)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.blob")} == compiled
    np.testing.assert_array_equal(first["x250"], second["x250"])


def test_a_thousand_steps_take_no_memory():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    program = load(
        "agraph (float[64,64] a, float[64,64] w) => (float[64,64] c) { b = MatMul (a, w) c = Tanh (b) }"
    )
    reads = {"a": HostTensor.zeros((64, 64), FLOAT), "w": HostTensor.zeros((64, 64), FLOAT)}
    step = program.bound(reads, {"c": HostTensor.zeros((64, 64), FLOAT)})
    for _ in range(100):
        step()
    before = resident()
    for _ in range(1000):
        step()
    assert resident() - before < 1000 * 64 * 64  # a quarter of one tensor a step


def test_nodes_are_timed_by_their_names():
    graph = """
    agraph (float[64,64] a, float[64,64] w, float[64] b) => (float[64,64] y) {
      t = Transpose <perm = [1, 0]> (w)
      c = Gemm (a, t, b)
      y = Softmax (c)
    }
    """
    model = parse_model(graph)
    for node in model.graph.node:
        node.name = node.op_type.lower()
    program = RUNTIME.load(model, "cpu", settings=LoadSettings(traces=True))
    feeds = {
        "a": np.ones((64, 64), np.float32),
        "w": np.ones((64, 64), np.float32),
        "b": np.ones(64, np.float32),
    }
    steps = []
    times = program.node_times(feeds, repeats=3, on_step=lambda: steps.append(0))
    assert len(steps) == 5
    assert {"gemm", "softmax"} <= {name for node in times.nodes for name in node.nodes}
    assert program.executed()["gemm"] is Precision.FP32
    assert times.step.median_us > 0
    assert times.accounted > 0


def test_a_step_copies_no_output():
    program = load("agraph (float[1024,1024] x) => (float[1024,1024] y) { y = Relu (x) }")
    step = program.placed({"x": np.ones((1024, 1024), np.float32)})
    step()
    tracemalloc.start()
    step()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2**20  # the output has 4 MiB


LET_GO = """
import gc, signal
from onnx import parser
from campo_onnx.runtime.openvino.runtime import RUNTIME
graph = "g (float[4] x) => (float[4] y) { y = Relu(x) }"
model = parser.parse_model('<ir_version: 10, opset_import: ["": 22]> ' + graph)
first, second = RUNTIME.load(model, "cpu"), RUNTIME.load(model, "cpu")
del first; gc.collect()
del second; gc.collect()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_after_programs_were_let_go_in_the_order_in_which_they_were_made():
    """A signal went to the stack of a core that had ended, and the process with it."""
    done = subprocess.run([sys.executable, "-c", LET_GO], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
