"""Samples: valid nodes, spread over sizes, reproducible."""

from collections.abc import Iterable

import numpy as np
import onnx
import pytest

from campo_onnx.calibrate.layers import GENERATORS, QUICK_OPS, SAMPLED_OPS
from campo_onnx.calibrate.samples import Sampling, cast_samples, samples_of
from campo_onnx.errors import UsageError
from campo_onnx.ir.importer import import_model
from campo_onnx.measure.one_node import one_node_model, step_samples
from campo_onnx.ops.facts import ports_of, work_of
from campo_onnx.ops.multiples import Multiples
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature

SMALL = Sampling(count=12, largest_bytes=2e6, largest_flops=1e8)


def sizes(signatures: Iterable[Signature]) -> list[float]:
    return [signature.nbytes for signature in signatures]


@pytest.mark.parametrize("op", SAMPLED_OPS)
def test_samples_are_valid_nodes_within_limits(op: str) -> None:
    drawn = samples_of(op, SMALL)
    assert len(drawn) == SMALL.count
    assert len({s.key for s in drawn}) == SMALL.count
    assert max(sizes(drawn)) <= SMALL.largest_bytes
    for signature in drawn[:4]:
        assert signature.op.op_type == op
        low = lowered(signature, ports_of(signature, Precision.FP16), Precision.FP16)
        assert low is not None
        onnx.checker.check_model(one_node_model(signature, 1), full_check=True)
        onnx.checker.check_model(one_node_model(low, 2), full_check=True)


def test_sizes_spread_over_orders_of_magnitude() -> None:
    drawn = sizes(samples_of("Add", Sampling(count=60, largest_bytes=1e8, largest_flops=1e12)))
    assert max(drawn) / min(drawn) > 1000


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Conv", "ConvTranspose"])
def test_aligned_and_unaligned_products(op: str) -> None:
    drawn = samples_of(op, Sampling(count=60, largest_bytes=1e8, largest_flops=1e12))
    aligned = sum(all(gemm.is_aligned(Multiples.of_all(8)) for gemm in work_of(s).gemms) for s in drawn)
    assert 20 <= aligned <= 40


def test_samples_do_not_depend_on_other_ops() -> None:
    assert [s.key for s in samples_of("Mul", SMALL)] == [s.key for s in samples_of("Mul", SMALL)]
    other = Sampling(count=12, largest_bytes=2e6, largest_flops=1e8, seed=1)
    assert [s.key for s in samples_of("Mul", other)] != [s.key for s in samples_of("Mul", SMALL)]


def test_unknown_operator() -> None:
    with pytest.raises(UsageError, match="MatMul"):
        samples_of("NoSuchOp", SMALL)


def test_on_a_gpu_gradients_of_weights_follow_the_usual_products() -> None:
    usual, more = (samples_of("Gemm", SMALL, is_gpu=is_gpu) for is_gpu in (None, True))
    assert more[: len(usual)] == usual
    further = more[len(usual) :]
    assert len(further) == SMALL.count
    assert all(node.attribute("transA", 0) == 1 for node in further)
    assert samples_of("Add", SMALL, is_gpu=True) == samples_of("Add", SMALL)


def test_casts_go_both_ways_over_a_log_sweep() -> None:
    sweep = list(cast_samples(5, 1 << 20, Precision.FP16))
    elements = sorted({n for n, _ in sweep})
    assert elements[0] == 512
    assert elements[-1] == 1 << 20
    assert np.ptp(np.diff(np.log(elements))) < 0.01
    assert {s.input_types.split("[")[0] for _, s in sweep} == {"float32", "float16"}
    assert len(sweep) == 10


def test_a_quick_calibration_takes_what_steps_spend_their_time_in() -> None:
    assert SAMPLED_OPS[: len(QUICK_OPS)] == QUICK_OPS
    assert (QUICK_OPS[0], QUICK_OPS[-1]) == ("MatMul", "LessOrEqual")
    assert len(SAMPLED_OPS) == len(set(SAMPLED_OPS)) == len(GENERATORS)


def test_each_node_of_a_step_that_low_precision_may_change_is_a_sample_once() -> None:
    step = """
        g (float[4, 8] x, float[8, 8] w, int64[4] i)
        => (float[4, 8] y, float[4, 8] z, int64[4] k, float[1, 32] f)
        {
            a = MatMul (x, w)
            b = MatMul (x, w)
            y = Relu (a)
            z = Sigmoid (b)
            k = Add (i, i)
            f = Flatten <axis = 0> (x)
        }
    """
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {step}')
    samples = list(step_samples(import_model(model).view, Precision.FP16))
    assert [signature.op.op_type for signature in samples] == ["MatMul", "Relu", "Sigmoid"]
