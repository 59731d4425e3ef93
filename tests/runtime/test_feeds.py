"""Inputs that are valid for a graph, made up or read."""

import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.view import GraphView, OpNode, TensorInfo, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.runtime.feeds import index_bound, read_feeds, synthesize
from tests.conftest import parse_model

DATA = Path(__file__).parent.parent / "data"
F, INT, B = int(TensorProto.FLOAT), int(TensorProto.INT64), int(TensorProto.BOOL)
Shape = tuple[int, ...]


def graph(
    inputs: dict[str, tuple[int, Shape | None]],
    *nodes: tuple[str, list[str], str, Shape],
    values: dict[str, np.ndarray] | None = None,
) -> GraphView:
    tensors = {
        name: TensorInfo(name=name, dtype=dtype, shape=shape, kind=TensorKind.INPUT)
        for name, (dtype, shape) in inputs.items()
    }
    op_nodes = []
    for label, read, output, shape in nodes:
        op_nodes.append(OpNode(name=output, op=OpKey.parse(label), inputs=tuple(read), outputs=(output,)))
        tensors[output] = TensorInfo(name=output, dtype=F, shape=shape, kind=TensorKind.ACTIVATION)
    for name, value in (values or {}).items():
        tensors[name] = TensorInfo(name=name, dtype=F, shape=value.shape, kind=TensorKind.CONSTANT)
    return GraphView(
        nodes=tuple(op_nodes),
        tensors=tensors,
        inputs=tuple(inputs),
        outputs=(op_nodes[-1].name,) if op_nodes else (),
        opset={"": 20},
        values=values or {},
    )


def test_indices_stay_inside_the_table_also_behind_a_reshape() -> None:
    view = graph(
        {"table": (F, (7, 3)), "ids": (INT, (4, 50))},
        ("Reshape", ["ids", "shape"], "flat", (200,)),
        ("Gather", ["table", "flat"], "rows", (200, 3)),
    )
    ids = synthesize(view)["ids"]
    assert ids.dtype == np.int64
    assert ids.min() == 0
    assert ids.max() == 6


def test_the_smallest_table_decides() -> None:
    view = graph(
        {"a": (F, (9, 1)), "b": (F, (4, 1)), "ids": (INT, (300,))},
        ("Gather", ["a", "ids"], "x", (300, 1)),
        ("Gather", ["b", "ids"], "y", (300, 1)),
    )
    assert synthesize(view)["ids"].max() == 3


def test_labels_stay_inside_the_classes() -> None:
    view = graph(
        {"scores": (F, (64, 5)), "labels": (INT, (64,))},
        ("SoftmaxCrossEntropyLoss", ["scores", "labels"], "loss", ()),
    )
    assert 2 <= synthesize(view)["labels"].max() <= 4


def test_onehot_depth() -> None:
    view = graph(
        {"ids": (INT, (100,))},
        ("OneHot", ["ids", "depth", "onoff"], "hot", (100, 11)),
        values={"depth": np.asarray(11.0), "onoff": np.zeros(2)},
    )
    assert synthesize(view)["ids"].max() == 10


@pytest.mark.parametrize("shape", [(2**62,), (2**31, 2**31), (16, 2**30)])
def test_inputs_beyond_all_memory_are_refused(shape: tuple[int, ...]) -> None:
    view = graph({"x": (F, shape)}, ("Relu", ["x"], "y", shape))
    with pytest.raises(UnsupportedModelError, match=r"for the input 'x': its shape \(\d+.* takes more than"):
        synthesize(view)


def test_what_the_machine_has_no_memory_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("campo_onnx.runtime.feeds._value", fails)
    view = graph({"x": (F, (4,))}, ("Relu", ["x"], "y", (4,)))
    with pytest.raises(UnsupportedModelError, match="takes more memory than there is"):
        synthesize(view)


def test_masks_are_zeros_and_ones() -> None:
    view = graph(
        {"mask": (B, (40,)), "flags": (INT, (40,))}, ("Where", ["mask", "flags", "flags"], "y", (40,))
    )
    feeds = synthesize(view)
    assert feeds["mask"].dtype == bool
    assert set(feeds["mask"]) == {False, True}
    assert set(feeds["flags"]) == {0, 1}


def test_variances_are_positive_also_behind_an_epsilon() -> None:
    view = graph(
        {"var": (F, (50,)), "mean": (F, (50,))},
        ("Add", ["var", "eps"], "sum", (50,)),
        ("Sqrt", ["sum"], "std", (50,)),
        ("Mul", ["mean", "std"], "y", (50,)),
        values={"eps": np.asarray(1e-5)},
    )
    feeds = synthesize(view)
    assert feeds["var"].min() > 0
    assert feeds["mean"].min() < 0


@pytest.mark.parametrize("decay", ["beta", "chosen"])  # a step that overflows keeps the state: its decay is 1
def test_a_running_second_moment_is_positive(decay: str) -> None:
    # Adam: sqrt((0.999 v + 0.001 g g) / correction). Other sums of two tensors may be negative.
    view = graph(
        dict.fromkeys(("v", "g", "x", "bias", "correction"), (F, (50,))) | {"is_finite": (B, ())},
        ("Where", ["is_finite", "beta", "beta"], "chosen", ()),
        ("Mul", ["v", decay], "old", (50,)),
        ("Mul", ["g", "g"], "square", (50,)),
        ("Add", ["old", "square"], "new", (50,)),
        ("Div", ["new", "correction"], "corrected", (50,)),
        ("Sqrt", ["corrected"], "root", (50,)),
        ("Add", ["x", "bias"], "sum", (50,)),
        ("Tanh", ["sum"], "bounded", (50,)),
        ("Pow", ["bounded", "beta"], "y", (50,)),
        values={"beta": np.asarray(0.999)},
    )
    feeds = synthesize(view)
    assert feeds["v"].min() > 0
    assert feeds["g"].min() < 0
    assert feeds["bias"].min() < 0
    assert feeds["x"].min() < 0


def test_ratio_and_scalars() -> None:
    view = graph({"x": (F, (8,)), "ratio": (F, ()), "lr": (F, ())}, ("Dropout", ["x", "ratio"], "y", (8,)))
    feeds = synthesize(view)
    assert 0 < feeds["ratio"] < 1
    assert feeds["lr"].shape == ()


def test_same_seed_same_values() -> None:
    view = graph({"x": (F, (8,))})
    assert np.array_equal(synthesize(view, seed=3)["x"], synthesize(view, seed=3)["x"])
    assert not np.array_equal(synthesize(view, seed=3)["x"], synthesize(view, seed=4)["x"])


def test_unknown_shape_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'x'.*--inputs"):
        synthesize(graph({"x": (F, None)}))


def test_a_real_graph_gets_all_its_inputs() -> None:
    view = import_model(DATA / "bert2_mlm_sdpa.onnx").view
    feeds = synthesize(view)
    assert tuple(feeds) == view.inputs
    assert feeds["input0"].max() > 900  # the vocabulary has 1000 words
    assert feeds["input1"].max() == 1  # two token types


VIEW = graph({"x": (F, (2,)), "ids": (INT, (3,))})


def test_reads_given_inputs(tmp_path: Path) -> None:
    x, ids = np.ones(2, np.float32), np.arange(3)
    np.savez(tmp_path / "data.npz", x=x, ids=ids)
    feeds = read_feeds(tmp_path / "data.npz", VIEW)
    assert np.array_equal(feeds["x"], x)
    assert np.array_equal(feeds["ids"], ids)


def test_what_has_a_default_may_be_left_out(tmp_path: Path) -> None:
    imported = import_model(
        parse_model("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {3, 4}> { y = Mul(x, w) }")
    )
    np.savez(tmp_path / "data.npz", x=np.ones(2, np.float32))
    assert read_feeds(tmp_path / "data.npz", imported.view, imported.defaults)["w"].tolist() == [3, 4]
    np.savez(tmp_path / "data.npz", w=np.ones(2, np.float32))
    with pytest.raises(UsageError, match="'x' is missing"):
        read_feeds(tmp_path / "data.npz", imported.view, imported.defaults)


def test_every_misfit_is_listed(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((2, 2)), other=np.ones(1))
    with pytest.raises(UsageError) as error:
        read_feeds(tmp_path / "data.npz", VIEW)
    for part in ("'ids' is missing", "no input 'other'", "float64", r"shape (2, 2)"):
        assert part in str(error.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_feeds(tmp_path / "none.npz", VIEW)
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"not a zip file")
    with pytest.raises(UsageError, match=r"not an \.npz file"):
        read_feeds(broken, VIEW)
    single = tmp_path / "single.npy"
    np.save(single, np.ones(2))
    with pytest.raises(UsageError, match=r"not an \.npz file"):
        read_feeds(single, VIEW)


def with_header(path: Path, header: str, data: bytes = b"") -> None:
    text = header.encode() + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", array)
        archive.writestr("ids.npy", array)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000)}", "claims the shape"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 7)}", r"has shape \(2, 7\)"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (2, 2)}", "is object"),
        ("{'descr': '<U999999999', 'fortran_order': False, 'shape': (9,)}", "npz file|claims"),
        ("{'descr': 'nonsense', 'fortran_order': False, 'shape': (2, 2)}", "not an .npz file"),
        ("(" * 5000, "not an .npz file"),
        ("__import__('os')", "not an .npz file"),
    ],
)
def test_what_an_array_claims_is_checked_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, message: str
) -> None:
    with_header(tmp_path / "data.npz", header)
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(UsageError, match=message):
        read_feeds(tmp_path / "data.npz", VIEW)


def test_a_member_that_is_no_array(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("x", b"text")
    with pytest.raises(UsageError, match=r"not an \.npz file"):
        read_feeds(tmp_path / "data.npz", VIEW)


def test_an_axis_that_is_none_is_no_bound() -> None:
    view = graph({"t": (F, (8,)), "i": (INT, (2,))}, ("Gather", ["t", "i"], "y", (2,)))
    (node,) = view.nodes
    assert index_bound(node, 1, view) == 8
    assert index_bound(replace(node, attributes={"axis": 7}), 1, view) is None


def test_what_is_read_is_what_was_looked_at(tmp_path):
    """Of two members with one name, one would be checked and the other one read."""
    np.savez(tmp_path / "data.npz", x=np.ones((2, 2), np.float32), ids=np.zeros(3, np.int64))
    with zipfile.ZipFile(tmp_path / "data.npz", "a") as archive:
        archive.writestr("x", b"text")
    with pytest.raises(UsageError, match="two arrays have one name"):
        read_feeds(tmp_path / "data.npz", VIEW)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
def test_a_device_is_not_read():
    with pytest.raises(UsageError, match="not a regular file"):
        read_feeds(Path("/dev/zero"), VIEW)


@pytest.mark.parametrize(
    "bounds", [(1e308, 1e308), (-1e308, 1e308), (float("-inf"), float("inf")), (1e30, 1e300)]
)
@pytest.mark.parametrize("kind", ["float", "float16", "double", "int64", "int32", "uint8"])
def test_declared_ranges_beyond_what_a_type_holds(model_text, bounds, kind):
    model = model_text(
        f"g ({kind}[4, 4] x, float[2] z) => (float[2] y) {{ c = Cast<to = 1>(x) y = Relu(z) }}"
    )
    (drawn, _) = synthesize(import_model(model).view, within={"x": bounds}).values()
    assert np.isfinite(drawn.astype(np.float64)).all()  # and no warning, which is an error here
    assert bounds[0] < 0 or (drawn >= 0).all()
