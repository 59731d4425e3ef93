"""Writing: checked, atomic, external data streamed, nothing left behind."""

import os
import tracemalloc

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from campo_onnx.errors import ModelError, UsageError
from campo_onnx.ir import exporter
from campo_onnx.ir.convert import converted
from campo_onnx.ir.exporter import check_destination, check_not_read, export_model
from campo_onnx.ops.precision import Precision

GRAPH = "g (float[2] x) => (float[2] y) { y = Relu(x) }"


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_reads_back_equal(model_text, tmp_path):
    export_model(model_text(GRAPH), tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx") == model_text(GRAPH)
    assert names_in(tmp_path) == ["out.onnx"]


def test_writing_twice_gives_the_same_bytes(model_text, tmp_path):
    for name in ("a", "b"):
        export_model(model_text(GRAPH), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def data_of(path):
    """The data file of a model that was written."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    (name,) = {e.value for t in tensors for e in t.external_data if e.key == "location"}
    return path.with_name(name)


# --- destinations ---


@pytest.mark.parametrize(
    ("target", "force", "message"),
    [
        ("folder", True, "is a folder"),
        ("missing/out.onnx", True, "does not exist"),
        ("file/out.onnx", True, "does not exist"),
        ("file", False, "exists.*--force"),
        ("pipe", True, "not a regular file"),
    ],
)
def test_bad_destinations(tmp_path, target, force, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("precious")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=message):
        check_destination(tmp_path / target, force=force)
    assert (tmp_path / "file").read_text() == "precious"


def test_force_allows_existing_files(tmp_path):
    (tmp_path / "file").write_text("")
    check_destination(tmp_path / "file", force=True)
    check_destination(tmp_path / "new", force=False)


def test_the_input_itself_also_through_a_link(tmp_path):
    source = tmp_path / "m.onnx"
    source.write_text("")
    (tmp_path / "link.onnx").symlink_to(source)
    for target in (source, tmp_path / "link.onnx"):
        with pytest.raises(UsageError, match="is the input itself"):
            check_destination(target, force=False, source=source)
    check_destination(source, force=True, source=source)


def test_a_folder_without_permission(tmp_path, monkeypatch):
    """Root may write anywhere, so that permissions themselves are no test for everybody."""
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
    with pytest.raises(UsageError, match="no permission"):
        check_destination(tmp_path / "out.onnx", force=False)


# --- interruptions ---


@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), KeyboardInterrupt(), SystemExit(143), OSError("disk full")]
)
@pytest.mark.parametrize("at", ["check_written", "os.fsync", "os.replace"])
def test_an_interruption_leaves_nothing_and_harms_nothing(model_text, tmp_path, monkeypatch, error, at):
    target = tmp_path / "out.onnx"
    target.write_text("precious")

    def interrupt(*_):
        raise error

    holder, _, name = at.rpartition(".")
    monkeypatch.setattr(getattr(exporter, holder) if holder else exporter, name, interrupt)
    expected = UsageError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        export_model(model_text(GRAPH), target)
    monkeypatch.undo()
    assert names_in(tmp_path) == ["out.onnx"]
    assert target.read_text() == "precious"


def test_an_invalid_model_is_not_written(model_text, tmp_path):
    model = model_text(GRAPH)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    with pytest.raises(onnx.shape_inference.InferenceError):
        export_model(model, tmp_path / "out.onnx")
    assert names_in(tmp_path) == []


# --- external data ---


def outside(name, values, folder, offset=0):
    with (folder / "w.bin").open("ab") as file:
        file.write(values.tobytes())
    tensor = TensorProto(
        name=name,
        data_type=onnx.helper.np_dtype_to_tensor_dtype(values.dtype),
        dims=values.shape,
        data_location=TensorProto.EXTERNAL,
    )
    for key, value in (("location", "w.bin"), ("offset", offset), ("length", values.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


@pytest.fixture
def folders(tmp_path):
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    return tmp_path / "in", tmp_path / "out"


def test_external_data_lies_beside_the_output(model_text, folders):
    source, out = folders
    model = model_text(
        "g (float[3] x) => (float[3] y, int8[2] u) { h = Add(x, w) y = Mul(h, v) u = Identity(i) }"
    )
    w = np.array([1, 2, 3], np.float32)
    model.graph.initializer.extend(
        [
            outside("w", w, source),
            outside("v", 2 * w, source, 12),
            outside("i", np.array([7, 8], np.int8), source, 24),
        ]
    )
    export_model(model, out / "m.onnx", folder=source)
    assert names_in(out) == ["m.onnx", data_of(out / "m.onnx").name]
    read = {t.name: numpy_helper.to_array(t) for t in onnx.load(out / "m.onnx").graph.initializer}
    np.testing.assert_array_equal(read["v"], 2 * w)
    assert read["i"].tolist() == [7, 8]
    offsets = [
        int({e.key: e.value for e in t.external_data}["offset"])
        for t in onnx.load(out / "m.onnx", load_external_data=False).graph.initializer
    ]
    assert all(offset % 4096 == 0 for offset in offsets)


@pytest.mark.parametrize(
    ("precision", "dtype"), [(Precision.FP16, np.float16), (Precision.BF16, ml_dtypes.bfloat16)]
)
def test_external_data_is_converted_as_it_is_written(model_text, folders, precision, dtype):
    source, out = folders
    w = np.linspace(-5, 5, 1000, dtype=np.float32)
    name = "float16" if precision is Precision.FP16 else "bfloat16"
    model = model_text(f"g ({name}[1000] x) => ({name}[1000] y) {{ y = Add(x, w_low) }}")
    model.graph.initializer.append(converted(outside("w", w, source), "w_low", precision, source))
    export_model(model, out / "m.onnx", folder=source)
    (low,) = onnx.load(out / "m.onnx").graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(low), w.astype(dtype))
    assert data_of(out / "m.onnx").stat().st_size == 2000


def test_external_data_of_bodies_and_constant_nodes_comes_along(model_text, folders):
    source, out = folders
    model = model_text("""g (float[2] x, bool c) => (float[2] y) {
        k = Constant<value = float[2] {0, 0}>()
        h = Add(x, k)
        y = If (c) <then_branch = t () => (float[2] o) { o = Add(h, w) },
                    else_branch = e () => (float[2] p) { p = Identity(h) }>
    }""")
    w = np.array([1, 2], np.float32)
    model.graph.node[0].attribute[0].t.CopyFrom(outside("", w, source))
    (then,) = [a.g for a in model.graph.node[2].attribute if a.name == "then_branch"]
    then.initializer.append(outside("w", 3 * w, source, 8))
    export_model(model, out / "m.onnx", folder=source)
    read = onnx.load(out / "m.onnx")
    assert numpy_helper.to_array(read.graph.node[0].attribute[0].t).tolist() == [1, 2]
    (then,) = [a.g for a in read.graph.node[2].attribute if a.name == "then_branch"]
    assert numpy_helper.to_array(then.initializer[0]).tolist() == [3, 6]


def with_weights(model_text, folder, *values):
    """Write a model whose weights lie outside; returns it as it refers to them."""
    folder.mkdir(exist_ok=True)
    model = model_text("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    model.graph.initializer.append(outside("w", np.array(values, np.float32), folder))
    return model


def weights(path):
    return numpy_helper.to_array(onnx.load(path).graph.initializer[0]).tolist()


def test_a_kill_between_the_two_moves_leaves_the_old_model_on_the_old_weights(
    model_text, tmp_path, monkeypatch
):
    target = tmp_path / "out" / "m.onnx"
    target.parent.mkdir()
    for number in (1, 2):
        folder = tmp_path / f"in{number}"
        model = with_weights(model_text, folder, number, number)
        if number == 1:
            export_model(model, target, folder=folder)
            continue
        moved = []

        def killed(source, place, real=os.replace, moved=moved):
            if moved:
                raise KeyboardInterrupt
            moved.append(place)
            real(source, place)

        monkeypatch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            export_model(model, target, folder=folder)
        assert moved, "the weights were moved"
        assert weights(target) == [1, 1]
        monkeypatch.undo()
        export_model(model, target, folder=folder)
        assert weights(target) == [2, 2]
        assert names_in(target.parent) == ["m.onnx", data_of(target).name], "the old weights went"


def test_the_weights_that_are_read_are_never_written_over(model_text, tmp_path):
    model = with_weights(model_text, tmp_path, 1, 2)
    before = (tmp_path / "w.bin").read_bytes()
    with pytest.raises(UsageError, match=r"w\.bin holds the weights of the model"):
        export_model(model, tmp_path / "w.bin", folder=tmp_path)
    assert (tmp_path / "w.bin").read_bytes() == before


def test_texts_and_model_are_written_together_or_not_at_all(model_text, tmp_path):
    model = model_text("g (float[2] x) => (float[2] y) { y = Abs(x) }")
    with pytest.raises(UsageError, match="cannot be written"):
        export_model(model, tmp_path / "m.onnx", texts={tmp_path / "missing" / "plan.json": "{}"})
    assert names_in(tmp_path) == []
    with pytest.raises(UsageError, match="two outputs"):
        export_model(model, tmp_path / "m.onnx", texts={tmp_path / "m.onnx": "{}"})
    assert names_in(tmp_path) == []
    export_model(model, tmp_path / "m.onnx", texts={tmp_path / "plan.json": "{}"})
    assert names_in(tmp_path) == ["m.onnx", "plan.json"]


def test_texts_do_not_take_the_place_of_weights(model_text, tmp_path):
    model = with_weights(model_text, tmp_path, 1, 2)
    before = (tmp_path / "w.bin").read_bytes()
    with pytest.raises(UsageError, match="holds the weights"):
        export_model(model, tmp_path / "m.onnx", folder=tmp_path, texts={tmp_path / "w.bin": "{}"})
    assert (names_in(tmp_path), (tmp_path / "w.bin").read_bytes()) == (["w.bin"], before)


def test_a_link_stays_a_link(model_text, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "m.onnx").symlink_to(tmp_path / "there" / "real.onnx")
    export_model(model_text("g (float[2] x) => (float[2] y) { y = Abs(x) }"), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").is_symlink()
    assert onnx.load(tmp_path / "there" / "real.onnx").graph.node


def test_another_model_keeps_the_weights_it_shares(model_text, tmp_path):
    """A copy of a model refers to the same data file: replacing the first must not take it away."""
    source = tmp_path / "in"
    first, copy = tmp_path / "m.onnx", tmp_path / "copy.onnx"
    export_model(with_weights(model_text, source, 1, 2), first, folder=source)
    copy.write_bytes(first.read_bytes())
    model = onnx.load(copy, load_external_data=False)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "more"))
    export_model(model, first, folder=tmp_path)
    assert weights(copy) == [1, 2]


def test_overwriting_a_model_in_place_reads_its_data_first(model_text, tmp_path):
    model = model_text("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    w = outside("w", np.array([1, 2], np.float32), tmp_path)
    (tmp_path / "w.bin").rename(tmp_path / "m.onnx.data")
    w.external_data[0].value = "m.onnx.data"
    model.graph.initializer.append(w)
    for _ in range(2):
        export_model(model, tmp_path / "m.onnx", folder=tmp_path)
        assert numpy_helper.to_array(onnx.load(tmp_path / "m.onnx").graph.initializer[0]).tolist() == [1, 2]
        model = onnx.load(tmp_path / "m.onnx", load_external_data=False)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(b"short"), "ends before the data"),
    ],
)
def test_data_that_is_not_there_leaves_nothing(model_text, folders, spoil, message):
    source, out = folders
    model = model_text("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    model.graph.initializer.append(outside("w", np.ones(2, np.float32), source))
    spoil(source / "w.bin")
    with pytest.raises(ModelError, match=message):
        export_model(model, out / "m.onnx", folder=source)
    assert names_in(out) == []


def test_large_data_is_streamed(model_text, folders):
    source, out = folders
    elements = 1 << 24  # 64 MiB in FP32
    with (source / "w.bin").open("wb") as file:
        file.truncate(elements * 4)
    tensor = TensorProto(name="w", data_type=1, dims=[elements], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    model = model_text(
        f"g (float16[{elements}] x, float[{elements}] z) => (float16[{elements}] y, float[{elements}] u)"
        "{ y = Add(x, w_fp16) u = Add(z, w) }"
    )
    model.graph.initializer.extend([tensor, converted(tensor, "w_fp16", Precision.FP16, source)])
    tracemalloc.start()
    export_model(model, out / "m.onnx", folder=source)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert data_of(out / "m.onnx").stat().st_size == elements * 6
    assert peak_bytes < elements * 4


def test_a_model_near_the_limit_of_protobuf_moves_its_weights_out(model_text, tmp_path, monkeypatch):
    monkeypatch.setattr(exporter, "_INLINE_LIMIT_BYTES", 4000)
    model = model_text("g (float[1000] x) => (float[1000] y) { h = Add(x, w) y = Mul(h, s) }")
    w, s = np.arange(1000, dtype=np.float32), np.array([2], np.float32)
    model.graph.initializer.extend([numpy_helper.from_array(w, "w"), numpy_helper.from_array(s, "s")])
    export_model(model, tmp_path / "m.onnx")
    assert names_in(tmp_path) == ["m.onnx", data_of(tmp_path / "m.onnx").name]
    assert (tmp_path / "m.onnx").stat().st_size < 1000
    assert onnx.load(tmp_path / "m.onnx").graph.initializer[0].raw_data == w.tobytes()
    located = onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer
    assert [t.data_location for t in located] == [TensorProto.EXTERNAL, TensorProto.DEFAULT]


def test_nothing_is_written_over_what_is_read(tmp_path):
    (tmp_path / "batch.npz").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "batch.npz")
    for target in (tmp_path / "batch.npz", tmp_path / "link", tmp_path / "." / "batch.npz"):
        with pytest.raises(UsageError, match="holds the weights"):
            check_not_read([target], [tmp_path / "batch.npz"])
    check_not_read([tmp_path / "new.npz"], [tmp_path / "batch.npz"])


@pytest.mark.parametrize(
    ("name", "why"), [("m" * 300, "too long"), ("m\udcff", "not UTF-8"), ("m\0", "null")]
)
def test_names_that_no_output_can_have(tmp_path, name, why):
    with pytest.raises(UsageError, match=why):
        check_destination(tmp_path / name, force=True)
