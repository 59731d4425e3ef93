"""Programs of torch: bound in the caller's memory, compiled or not, in the types of the graph."""

import gc
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

torch = pytest.importorskip("torch")

from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.api import LoadSettings, Place
from campo_onnx.runtime.host_tensor import HostTensor
from campo_onnx.runtime.torch import compiled, installed
from campo_onnx.runtime.torch.runtime import RUNTIME
from tests.conftest import parse_model

FLOAT, BF16 = int(TensorProto.FLOAT), int(TensorProto.BFLOAT16)
LOW = helper.tensor_dtype_to_np_dtype(BF16)
# An input that nothing reads, one of which only the shape is read, one returned twice, a constant returned.
PORTS = """
agraph (float[3] unread, float[2,3] x, float[3,2] shaped, float[4] b, bfloat16[4] low, int64 n, bool[2] c,
        uint8[3] u, float[0,3] none)
    => (float[3,2] y, float[2,3] r, float[4] same, float[4] again, bfloat16[4] twice, int64 m, bool[2] d,
        uint8[3] v, float[0,3] nothing, float[2] k)
<float[2] weight = {3, 4}>
{
  r = Relu (x)
  shape = Shape (shaped)
  y = Reshape (r, shape)
  same = Identity (b)
  again = Identity (same)
  twice = Add (low, low)
  m = Add (n, n)
  d = Not (c)
  v = Identity (u)
  nothing = Relu (none)
  k = Identity (weight)
}
"""
SQUARE = "agraph (float[4,4] a, float[4,4] w) => (float[4,4] c) { c = MatMul (a, w) }"
MIXED = """
agraph (float[32,64] x, float[64,64] w, float[64] b) => (float[64,64] g, float loss) {
  lx = Cast <to = 16> (x)
  lw = Cast <to = 16> (w)
  h = MatMul (lx, lw)
  wide = Cast <to = 1> (h)
  biased = Add (wide, b)
  y = Tanh (biased)
  axes = Constant <value = int64[2] {0, 1}> ()
  loss = ReduceSum <keepdims = 0> (y, axes)
  t = Transpose <perm = [1, 0]> (x)
  g = MatMul (t, y)
}
"""


def load(graph, opset=22, **settings):
    model = parse_model(graph, opset)
    for node in model.graph.node:
        node.name = node.name or node.output[0]
    return RUNTIME.load(model, "cpu", threads=2, settings=LoadSettings(**settings))


def tensor(array):
    host_tensor = HostTensor.zeros(array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))
    host_tensor.write(array)
    return host_tensor


@pytest.fixture(params=["compiled", "eager"])
def kind(request, monkeypatch):
    """Graphs of these tests are too small to be compiled."""
    if request.param == "compiled":
        monkeypatch.setattr(compiled, "_eager", lambda *_, **__: "")
    return request.param


@pytest.fixture
def compiles(monkeypatch):
    monkeypatch.setattr(compiled, "_eager", lambda *_, **__: "")


@pytest.fixture
def arrays():
    return {
        "unread": np.zeros(3, np.float32),
        "x": np.arange(-3, 3, dtype=np.float32).reshape(2, 3),
        "shaped": np.zeros((3, 2), np.float32),
        "b": np.arange(4, dtype=np.float32),
        "low": np.asarray([1, 2, 3, 4]).astype(LOW),
        "n": np.asarray(21),
        "c": np.asarray([True, False]),
        "u": np.asarray([1, 2, 255], np.uint8),
        "none": np.zeros((0, 3), np.float32),
    }


def expected(arrays):
    positive = np.maximum(arrays["x"], 0)
    return {
        "y": positive.reshape(3, 2),
        "r": positive,
        "same": arrays["b"],
        "again": arrays["b"],
        "twice": (arrays["low"].astype(np.float32) * 2).astype(LOW),
        "m": np.asarray(arrays["n"] * 2),
        "d": ~arrays["c"],
        "v": arrays["u"],
        "nothing": arrays["none"],
        "k": np.asarray([3, 4], np.float32),
    }


def assert_same(results, wanted):
    assert list(results) == list(wanted)
    for name, value in wanted.items():
        assert (results[name].dtype, results[name].shape) == (value.dtype, value.shape), name
        np.testing.assert_array_equal(results[name].astype(np.float32), value.astype(np.float32), name)


def test_results_belong_to_the_caller(arrays, kind):
    program = load(PORTS)
    results = program.run(arrays)
    assert_same(results, expected(arrays))
    results["again"][:] = results["k"][:] = (
        9  # neither is memory of an input, of a constant or of another result
    )
    np.testing.assert_array_equal(arrays["b"], np.arange(4))
    assert_same(program.run(arrays), expected(arrays))


def test_a_step_reads_and_writes_what_is_bound(arrays, kind):
    program = load(PORTS)
    reads = {name: tensor(array) for name, array in arrays.items()}
    writes = {"y": HostTensor.zeros((3, 2), FLOAT), "twice": HostTensor.zeros((4,), BF16)}
    step = program.bound(reads, writes)
    step()
    np.testing.assert_array_equal(writes["y"].shared(), expected(arrays)["y"])
    reads["x"].shared()[...] = 7
    reads["low"].shared()[...] = 9
    step()
    np.testing.assert_array_equal(writes["y"].read(), np.full((3, 2), 7))
    np.testing.assert_array_equal(writes["twice"].read().astype(np.float32), np.full(4, 18))


def test_what_is_placed_is_read_where_it_lies(kind):
    array = np.ones((4, 4), np.float32)
    program = load("agraph (float[4,4] a) => (float[4,4] c) { c = Tanh (a) }")
    step = program.placed({"a": array})
    step()
    array.flags.writeable = False
    program.placed({"a": array})()  # copied, without a word from torch


def test_bindings_keep_their_memory_and_do_not_mix(arrays, kind):
    program = load(PORTS)
    steps = []
    for scale in (1, 2):
        own = {name: tensor((array * scale).astype(array.dtype)) for name, array in arrays.items()}
        result = {"twice": HostTensor.zeros((4,), BF16), "r": HostTensor.zeros((2, 3), FLOAT)}
        steps.append((program.bound(own, result), result, scale))
    del own
    gc.collect()
    for step, result, scale in steps:
        step()
        np.testing.assert_array_equal(result["r"].read(), expected(arrays)["r"] * scale)
        wanted = expected(arrays)["twice"].astype(np.float32) * scale
        np.testing.assert_array_equal(result["twice"].read().astype(np.float32), wanted)


def test_what_is_written_in_place_is_read_before(kind):
    """Two results are computed from a weight that one of them takes the place of."""
    graph = """
    agraph (float[8] w, float[8] m, float[8] g) => (float[8] w_next, float[8] m_next, float[8] before) {
      m_next = Add (m, g)
      w_next = Sub (w, m_next)
      before = Mul (w, m)
    }
    """
    w, m, g = (np.arange(8, dtype=np.float32) + k for k in (1, 10, 100))
    flat = HostTensor.zeros((16,), FLOAT)
    places = {"w": flat.slice(0, (8,)), "m": flat.slice(8, (8,))}
    before = HostTensor.zeros((8,), FLOAT)
    writes = {"w_next": places["w"], "m_next": places["m"], "before": before}
    step = load(graph).bound({**places, "g": tensor(g)}, writes)
    for _ in range(2):
        places["w"].write(w)
        places["m"].write(m)
        step()
        np.testing.assert_array_equal(places["m"].read(), m + g)
        np.testing.assert_array_equal(places["w"].read(), w - (m + g))
        np.testing.assert_array_equal(before.read(), w * m)


def test_a_program_runs_on_addresses_that_change(arrays, kind):
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
        own = {name: np.asarray(array * scale).astype(array.dtype) for name, array in arrays.items()}
        memory = {name: np.full_like(array, 9) for name, array in results.items()}
        step.run(
            [own[name].ctypes.data for name in reversed(arrays)],
            [memory[place.name].ctypes.data for place in writes[::-1]],
        )
        assert_same(memory, expected(own))


def test_addresses_may_be_run_from_several_threads(kind):
    program = load("agraph (float[64] x) => (float[64] y) { a = Exp (x) y = Log (a) }")
    place = Place("x", FLOAT, (64,), "cpu")
    step = program.addressed([place], [place._replace(name="y")])
    wrong = []

    def run(value):
        x, y = np.full(64, value, np.float32), np.zeros(64, np.float32)
        for _ in range(30):
            step.run([x.ctypes.data], [y.ctypes.data])
            if not np.allclose(x, y, atol=1e-5):
                wrong.append(value)

    threads = [threading.Thread(target=run, args=(value,)) for value in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_addresses_elsewhere_and_missing_ones_are_refused():
    program = load(SQUARE)
    a, w, c = (Place(name, FLOAT, (4, 4), "cpu") for name in "awc")
    with pytest.raises(UnsupportedModelError, match=r"1 inputs of the graph are not bound: .*'w'"):
        program.addressed([a], [c])
    with pytest.raises(UnsupportedModelError, match=r"1 outputs of the graph are not bound: .*'c'"):
        program.addressed([a, w], [])
    with pytest.raises(UnsupportedModelError, match="'w' is not in the host's memory"):
        program.addressed([a, w._replace(processor="cuda")], [c])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": None}, "1 inputs of the graph are not bound: a value is missing for 'a'"),
        ({"z": np.zeros(1, np.float32)}, "does not have the input 'z'"),
        (
            {"a": np.zeros((4, 5), np.float32)},
            r"'a' does not fit: it is float32\[4, 5\], and the graph has float32\[4, 4\]",
        ),
        ({"a": np.zeros((4, 4))}, r"it is float64\[4, 4\]"),
    ],
)
def test_what_does_not_fit_is_told(change, message):
    feeds = {"a": np.zeros((4, 4), np.float32), "w": np.zeros((4, 4), np.float32)} | change
    with pytest.raises(UnsupportedModelError, match=message):
        load(SQUARE).run({name: value for name, value in feeds.items() if value is not None})


def test_a_result_that_does_not_fit_is_told():
    reads = {name: HostTensor.zeros((4, 4), FLOAT) for name in "aw"}
    with pytest.raises(UnsupportedModelError, match=r"'c' does not fit: it is float32\[4\]"):
        load(SQUARE).bound(reads, {"c": HostTensor.zeros((4,), FLOAT)})
    with pytest.raises(UnsupportedModelError, match="does not have the output 'z'"):
        load(SQUARE).bound(reads, {"z": HostTensor.zeros((4, 4), FLOAT)})


def test_sizes_without_numbers_are_those_that_are_bound():
    program = load("agraph (float[N,4] x) => (float[N,4] y) { y = Tanh (x) }")
    for rows in (3, 5, 3):
        x = np.full((rows, 4), 0.5, np.float32)
        np.testing.assert_allclose(program.run({"x": x})["y"], np.tanh(x), rtol=1e-6)


def test_an_index_out_of_range_is_told(kind):
    program = load("agraph (float[4,4] x, int64[3] i) => (float[3,4] y) { t = Exp (x) y = Gather (t, i) }")
    with pytest.raises(ModelError, match=r"the step fails while it runs: .*(out of|bounds|range)"):
        program.run({"x": np.ones((4, 4), np.float32), "i": np.asarray([0, 1, 9])})


# Types.


def test_the_types_of_a_plan_are_those_that_run(compiles):
    """Products are called in the types of the graph, and what they read is stored in these."""
    program = load(MIXED)
    feeds = {
        "x": np.full((32, 64), 0.01, np.float32),
        "w": np.full((64, 64), 0.01, np.float32),
        "b": np.zeros(64, np.float32),
    }
    program.run(feeds)
    assert not program.note
    (source,) = program.sources
    stored = dict(re.findall(r"(buf\d+) = empty_strided_cpu\(.*, torch\.(\w+)\)", source))
    calls = re.findall(r"extern_kernels\.mm\((.*), out=(\w+)\)", source)
    types = [[stored[name] for name in re.findall(r"buf\d+", f"{read}, {out}")] for read, out in calls]
    assert types[0] == ["bfloat16", "bfloat16", "bfloat16"]
    assert set(types[1]) == {"float32"}
    assert program.executed() == {"h": Precision.BF16, "g": Precision.FP32}


def test_fp32_products_stay_fp32_whatever_the_process_says(kind):
    rng = np.random.default_rng(0)
    a, w = (rng.standard_normal((256, 256)).astype(np.float32) for _ in "aw")
    program = load("agraph (float[256,256] a, float[256,256] w) => (float[256,256] c) { c = MatMul (a, w) }")
    exact = a.astype(np.float64) @ w
    torch.set_float32_matmul_precision("medium")  # products of FP32 may be computed in BF16
    try:
        result = program.run({"a": a, "w": w})["c"]
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert np.linalg.norm(result - exact) / np.linalg.norm(exact) < 1e-6


def test_threads_of_the_process_are_as_before(kind):
    before = torch.get_num_threads()
    seen = []
    torch.set_num_threads(1)
    try:
        program = load(SQUARE)
        step = program.placed({name: np.ones((4, 4), np.float32) for name in "aw"})
        original = torch.set_num_threads
        step()
        assert torch.get_num_threads() == 1
        from campo_onnx.runtime.torch.precision import as_typed

        with as_typed(2, on_gpu=False):
            seen.append(torch.get_num_threads())
        assert torch.get_num_threads() == 1
    finally:
        original(before)
    assert seen == [2]


# Compiling.


def test_a_small_graph_is_not_compiled_and_says_so():
    program = load(SQUARE)
    program.run({name: np.ones((4, 4), np.float32) for name in "aw"})
    assert re.search(r"operation by operation: it has \d+ operations on [\d,]+ bytes", program.note)
    assert not program.sources


def test_a_graph_with_nothing_to_fuse_is_not_compiled():
    program = load(
        "agraph (float[1024,1024] a, float[1024,1024] w) => (float[1024,1024] c) { c = MatMul (a, w) }"
    )
    program.run({name: np.ones((1024, 1024), np.float32) for name in "aw"})
    assert "nothing to fuse" in program.note


def test_a_large_graph_is_compiled():
    program = load("agraph (float[1024,1024] a) => (float[1024,1024] c) { b = Exp (a) c = Log (b) }")
    program.run({"a": np.ones((1024, 1024), np.float32)})
    assert not program.note
    assert "cpp_fused" in program.sources[0]


def test_a_graph_that_takes_too_long_is_not_compiled(monkeypatch):
    monkeypatch.setattr(compiled, "_MOST_OPERATIONS", 1)
    program = load("agraph (float[1024,1024] a) => (float[1024,1024] c) { b = Exp (a) c = Log (b) }")
    program.run({"a": np.ones((1024, 1024), np.float32)})
    assert "too long to compile" in program.note


def test_without_a_compiler_of_cpp_a_graph_runs_all_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    program = load("agraph (float[1024,1024] a) => (float[1024,1024] c) { b = Exp (a) c = Log (b) }")
    x = np.ones((1024, 1024), np.float32)
    np.testing.assert_allclose(program.run({"a": x})["c"], x)
    assert "needs a C++ compiler" in program.note


def test_a_compiler_that_fails_is_told_and_the_graph_runs(compiles, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("no such lowering\nand more")

    monkeypatch.setattr(compiled, "_compile", fail)
    program = load(SQUARE)
    eye = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(program.run({"a": eye, "w": eye})["c"], eye)
    assert "TorchInductor fails with 'no such lowering'" in program.note


def test_a_broken_entry_of_the_cache_is_made_again(compiles, monkeypatch, tmp_path):
    """A process that is killed while it compiles leaves half of a library."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    graph = "agraph (float[33,7] a) => (float[33,7] c) { b = Sinh (a) c = Cosh (b) }"
    x = np.ones((33, 7), np.float32)
    wanted = load(graph).run({"a": x})["c"]
    libraries = list(tmp_path.rglob("*.so"))
    assert libraries
    for path in libraries:
        content = path.read_bytes()
        path.unlink()  # this process has it open
        path.write_bytes(content[:100])
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import numpy as np\n"
        "from tests.runtime.torch import test_program as t\n"
        "t.compiled._eager = lambda *_, **__: ''\n"
        "p = t.load(sys.argv[2]); print(p.run({'a': np.ones((33, 7), np.float32)})['c'][0, 0], p.note)"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code, root, graph], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[0]) == pytest.approx(float(wanted[0, 0]))
    assert "operation by operation" not in done.stdout


def test_an_untested_release_is_told(monkeypatch):
    monkeypatch.setattr("campo_onnx.runtime.torch.program.installed_version", lambda: "2.99.1")
    assert "PyTorch 2.99.1 is not tested: steps were run with 2.13" in load(SQUARE).note
    assert not installed.untested("2.13.1+cu130")


# Refusals and times.


def test_every_refused_operator_is_in_one_message():
    graph = """
    agraph (float[2,8] x) => (float[2,8] y) {
      a = com.example.Frobnicate (x)
      y = com.example.Twist (a)
    }
    """
    with pytest.raises(UnsupportedModelError, match=r"2 operators.*Frobnicate.*Twist"):
        load(graph)


def test_sizes_that_depend_on_values_are_refused():
    with pytest.raises(UnsupportedModelError, match="'y': its size depends on values"):
        load("agraph (float[8] x) => (int64[1,n] y) { y = NonZero (x) }")


def test_kernels_are_timed_with_the_nodes_that_they_compute(compiles):
    program = load(MIXED, traces=True)
    feeds = {
        "x": np.full((32, 64), 0.01, np.float32),
        "w": np.full((64, 64), 0.01, np.float32),
        "b": np.zeros(64, np.float32),
    }
    steps = []
    times = program.node_times(feeds, repeats=3, on_step=lambda: steps.append(0))
    assert len(steps) == 5
    assert times.step.median_us > 0
    assert times.accounted > 0
    by_kernel = {one.kernel: one for one in times.nodes}
    products = [one for one in times.nodes if one.kernel == "aten::mm"]
    assert [one.nodes for one in products] == [("h",), ("g",)]
    assert [one.precision for one in products] == [Precision.BF16, Precision.FP32]
    fused = {node for name, one in by_kernel.items() if name.startswith("cpp_fused") for node in one.nodes}
    assert {"lx", "lw", "biased", "y", "loss"} <= fused


def test_nodes_of_a_graph_that_is_not_compiled_are_timed_by_operation():
    graph = """
    agraph (float[4,4] a, float[4,4] w) => (float[4,4] c) {
      t = Transpose <perm = [1, 0]> (w)
      b = MatMul (a, t)
      c = Exp (b)
    }
    """
    times = load(graph, traces=True).node_times(
        {name: np.ones((4, 4), np.float32) for name in "aw"}, repeats=2
    )
    by_kernel = {one.kernel: one.nodes for one in times.nodes}
    assert by_kernel["aten::mm"] == ("b",)
    assert by_kernel["aten::exp"] == ("c",)
    assert times.step.median_us > 0


def test_constants_beside_the_graph_are_read(tmp_path):
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    model = parse_model("agraph (float[4,4] a) => (float[4,4] c) { c = MatMul (a, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    program = RUNTIME.load(model, "cpu", folder=tmp_path)
    np.testing.assert_allclose(program.run({"a": np.eye(4, dtype=np.float32)})["c"], weights, rtol=1e-6)
