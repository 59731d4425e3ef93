"""A step that is run in pieces, with most of it waiting on disk, computes what it computes in one."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.emulation.numerics import emulate
from campo_onnx.errors import UsageError
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime import chunked_run as pieces
from campo_onnx.runtime.chunked_run import Limits, Waiting, run, run_in_pieces
from campo_onnx.runtime.registry import machine

CPU = machine("cpu")
TINY = Limits(piece_bytes=1, held_bytes=0)

STEP = """(float[n,256] x, float[256,256] w, bool[1] which) =>
    (float[n,256] y, float[n,256] x, float[256,256] v, float[n,256] t, float[256,256] g)
    <float[1] eps = {0.5}> {
    [a] a = MatMul(x, w) [b] b = Relu(a) [c] c = MatMul(b, v)
    [if] d = If(which) <
        then_branch = yes () => (float[n,256] p) { p = Add(a, c) },
        else_branch = no () => (float[n,256] q) { q = Mul(a, eps) }
    >
    [split] s = SplitToSequence<axis=1>(d) [exp] e = Exp(b) [join] j = ConcatFromSequence<axis=1>(s)
    [y] y = Sub(j, b) [transposed] bt = Transpose<perm=[1,0]>(b) [g] g = MatMul(bt, y) [t] t = Tanh(e)
}"""


def step(model_text):
    model = model_text(f"g {STEP}", 18)
    weight = np.random.default_rng(1).normal(size=(256, 256)).astype(np.float32) / 16
    model.graph.initializer.append(numpy_helper.from_array(weight, "v"))
    random = np.random.default_rng(0)
    feeds = {
        "x": random.normal(size=(64, 256)).astype(np.float32),
        "w": random.normal(size=(256, 256)).astype(np.float32) / 16,
        "which": np.array([True]),
    }
    return model, feeds


@pytest.fixture
def written(monkeypatch):
    """Everything that waits, seen after the run."""
    seen = []
    monkeypatch.setattr(pieces, "Waiting", lambda *arguments: seen.append(Waiting(*arguments)) or seen[-1])
    return lambda: sum(waiting.files_written for waiting in seen)


def assert_same(model, feeds, limits):
    expected = run(model, feeds, CPU)
    actual = dict(run_in_pieces(model, feeds, CPU, limits=limits))
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


def test_pieces_compute_what_the_whole_computes(model_text, written):
    model, feeds = step(model_text)
    assert_same(model, feeds, TINY)
    assert written() > 3
    assert_same(model, {**feeds, "which": np.array([False])}, TINY)


@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
def test_an_emulated_step_waits_in_its_low_precision(model_text, low, written, monkeypatch):
    model = model_text(
        """g (float[64,256] x, float[256,256] w) => (float[64,256] y, float[256,256] g) {
            a = MatMul(x, w) b = Relu(a) c = MatMul(b, w) y = MatMul(c, w)
            bt = Transpose<perm=[1,0]>(b) g = MatMul(bt, y) }""",
        18,
    )
    options = Options(target=target("h200"), lists=oplists("campo"), low=low, strategy="fine-grained")
    emulated = emulate(optimize_model(model, options).model)
    feeds = {name: value for name, value in step(model_text)[1].items() if name != "which"}
    kept = set()
    put = Waiting.put
    monkeypatch.setattr(Waiting, "put", lambda self, name, *rest: kept.add(name) or put(self, name, *rest))
    assert_same(emulated, feeds, TINY)
    assert written()
    assert kept
    assert not any(name.endswith("_widened") for name in kept)


def test_what_fits_is_run_in_one_piece(model_text, written):
    model, feeds = step(model_text)
    assert_same(model, feeds, Limits())
    assert not written()


def test_a_full_disk_is_told(model_text, monkeypatch):
    model, feeds = step(model_text)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Waiting, "make_room", full)
    with pytest.raises(UsageError, match="No space left") as caught:
        dict(run_in_pieces(model, feeds, CPU, limits=TINY))
    assert "TMPDIR" in caught.value.remedy


def test_weights_in_another_file_are_found(model_text, tmp_path):
    model, feeds = step(model_text)
    expected = run(model, feeds, CPU)
    onnx.save(model, tmp_path / "step.onnx", save_as_external_data=True, size_threshold=0, location="weights")
    outside = onnx.load(tmp_path / "step.onnx", load_external_data=False)
    actual = dict(run_in_pieces(outside, feeds, CPU, folder=tmp_path, limits=TINY))
    for name in ("g", "v"):  # v is the weight itself
        np.testing.assert_array_equal(actual[name], expected[name])


def test_an_output_that_is_a_default_is_the_value_that_is_given(model_text):
    model, feeds = step(model_text)
    model.graph.input.append(onnx.helper.make_tensor_value_info("v", onnx.TensorProto.FLOAT, [256, 256]))
    other = np.eye(256, dtype=np.float32)
    outputs = dict(run_in_pieces(model, feeds | {"v": other}, CPU, limits=TINY))
    np.testing.assert_array_equal(outputs["v"], other)


def test_sequences_are_told_element_by_element(model_text):
    model = model_text("""g (float[4,2] x) => (seq(float[2,2]) s, optional(float[4,2]) o)
        <int64 two = {2}> { s = SplitToSequence<axis=0>(x, two) o = Optional(x) }""")
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    outputs = dict(run_in_pieces(model, {"x": x}, CPU))
    assert outputs.keys() == {"s[0]", "s[1]", "o"}
    np.testing.assert_array_equal(np.concatenate([outputs["s[0]"], outputs["s[1]"]]), x)
