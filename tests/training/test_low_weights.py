"""FP16 weights that are cast once per update, from the flat buffer."""

import numpy as np
import onnx
import pytest

from campo_onnx.export.optimizers import Momentum
from campo_onnx.training import low_weights
from campo_onnx.training.flat_state import flat_layout
from campo_onnx.training.low_weights import with_low_weights
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import WeightUpdate

# Rounded to FP16 and widened again, which the CPU computes as it stands.
STEP = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[3,40] x, float[40,40] "param.w", float[40,2] "param.v", float[2] "param.b")
        => (float loss, float[40,40] "grad.w", float[40,2] "grad.v", float[2] "grad.b")
        <float[3,2] ones = {1, 1, 1, 1, 1, 1}, int64[1] first = {0}> {
    [cw] wl = Cast<to = 10>("param.w")
    [cv] vl = Cast<to = 10>("param.v")
    [w] wf = Cast<to = 1>(wl)
    [v] vf = Cast<to = 1>(vl)
    [a] a = MatMul(x, wf)
    [p] p = MatMul(a, vf)
    [y] y = Add(p, "param.b")
    [l] loss = ReduceSum<keepdims = 0>(y)
    [at] at = Transpose<perm = [1, 0]>(a)
    [gv] "grad.v" = MatMul(at, ones)
    [vt] vt = Transpose<perm = [1, 0]>(vf)
    [ga] ga = MatMul(ones, vt)
    [xt] xt = Transpose<perm = [1, 0]>(x)
    [gw] "grad.w" = MatMul(xt, ga)
    [gb] "grad.b" = ReduceSum<keepdims = 0>(ones, first)
    }""")
SHAPES = {"w": (40, 40), "v": (40, 2), "b": (2,)}


def trained(accumulate: int = 1) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(0)
    state = {f"param.{n}": numbers.normal(size=s).astype(np.float32) for n, s in SHAPES.items()}
    update = WeightUpdate(optimizer=Momentum(momentum=0.9), accumulate=accumulate)
    settings = {"lr": np.float32(1e-3)}
    session = TrainingSession(STEP, state, update=update, settings=settings, provider="cpu", threads=1)
    losses = [session.step({"x": numbers.normal(size=(3, 40)).astype(np.float32)}).loss for _ in range(4)]
    return {**session.state(), "losses": np.asarray(losses)}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_are_the_same_to_the_bit(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = trained(accumulate)
    monkeypatch.setattr(low_weights, "_FEWEST", 100)
    one_by_one = trained(accumulate)
    assert one_by_one.keys() == at_once.keys()
    for name, value in one_by_one.items():
        np.testing.assert_array_equal(at_once[name], value)
    assert len(set(at_once["losses"])) == 4


def test_the_graph_reads_what_it_cast() -> None:
    layout = flat_layout(SHAPES)
    changed, low = with_low_weights(STEP, layout)
    assert low == {"w": "wl", "v": "vl"}
    assert [v.name for v in changed.graph.input][-2:] == ["wl", "vl"]
    assert [n.name for n in changed.graph.node if n.op_type == "Cast"] == ["w", "v"]
    onnx.checker.check_model(changed, full_check=True)


def test_a_flat_buffer_that_is_mostly_read_in_fp32_is_not_cast() -> None:
    layout = flat_layout({**SHAPES, "large": (1000, 1000)})
    assert with_low_weights(STEP, layout) == (STEP, {})
