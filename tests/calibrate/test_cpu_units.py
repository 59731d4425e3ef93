"""Calibrating for a CPU with BF16 units: grouped convolutions apart, and BF16 where ONNX types it."""

import pytest

from campo_onnx.calibrate.layers import GROUPED
from campo_onnx.calibrate.run import takes_tensor_cores, typed
from campo_onnx.calibrate.samples import Sampling, samples_of
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.precision import Precision
from campo_onnx.targets.target import target

SAMPLING = Sampling(count=20, largest_bytes=8e6, largest_flops=5e8)


@pytest.mark.parametrize("op", sorted(GROUPED))
def test_grouped_convolutions_follow_the_dense_ones(op: str) -> None:
    dense, both = (samples_of(op, SAMPLING, on_cpu=on_cpu) for on_cpu in (False, True))
    assert both[: len(dense)] == dense
    grouped = both[3 * len(dense) :]
    assert len(grouped) == SAMPLING.count // 2
    assert all(signature.attribute("group", 1) > 1 for signature in grouped)
    strides = {tuple(signature.attribute("strides", [])) for signature in grouped}
    assert strides == {(1, 1), (2, 2)}


def test_other_operators_have_no_groups() -> None:
    assert samples_of("Add", SAMPLING, on_cpu=True) == samples_of("Add", SAMPLING)


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_more_products_are_drawn_for_a_cpu(op: str) -> None:
    few, many = (samples_of(op, SAMPLING, on_cpu=on_cpu) for on_cpu in (False, True))
    assert many[: len(few)] == few
    assert len(many) == 3 * len(few)


def test_tiles_tell_sums_of_odd_length_apart() -> None:
    amx = target("cpu_amx").hardware
    nodes = samples_of("MatMul", SAMPLING, on_cpu=True)
    odd = {node: (node.inputs[0].shape or ())[-1] % 2 == 1 for node in nodes if node.inputs[0] is not None}
    assert set(odd.values()) == {True, False}
    assert all(takes_tensor_cores(node, amx, Precision.BF16) is not is_odd for node, is_odd in odd.items())


def test_units_that_take_any_size_tell_groups_apart_and_tensor_cores_alignment() -> None:
    nodes = samples_of("Conv", SAMPLING, on_cpu=True)
    on_cpu = {takes_tensor_cores(node, target("zen4").hardware, Precision.BF16): node for node in nodes}
    assert {units: node.attribute("group", 1) == 1 for units, node in on_cpu.items()} == {
        True: True,
        False: False,
    }
    odd = [node for node in samples_of("MatMul", SAMPLING) if node.inputs[0].shape[-1] % 8]  # type: ignore[union-attr, index]
    assert odd
    assert all(takes_tensor_cores(node, target("zen4").hardware, Precision.BF16) for node in odd)
    assert not any(takes_tensor_cores(node, target("a100").hardware, Precision.BF16) for node in odd)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool", "MatMul"])
def test_bf16_is_measured_at_an_opset_that_has_it(op: str) -> None:
    for node in samples_of(op, SAMPLING):
        assert ports_of(typed(node, Precision.BF16), Precision.BF16).refusal is None
        assert typed(node, Precision.FP16) == node
