"""Calibrating for a CPU with BF16 units: grouped convolutions apart, and BF16 where ONNX types it."""

from collections.abc import Mapping

import pytest
from onnx.shape_inference import infer_shapes

from campo_onnx.calibrate.layers import FURTHER_ON_CPU
from campo_onnx.calibrate.networks import Shape
from campo_onnx.calibrate.run import takes_tensor_cores, typed
from campo_onnx.calibrate.samples import Sampling, samples_of
from campo_onnx.measure.events import static_events
from campo_onnx.measure.one_node import one_node_model
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import FLOAT, make_signature
from campo_onnx.targets.target import target

SAMPLING = Sampling(count=20, largest_bytes=8e6, largest_flops=5e8)


@pytest.mark.parametrize("op", sorted(FURTHER_ON_CPU))
def test_further_kinds_follow_more_of_the_usual_one(op: str) -> None:
    few, many = (samples_of(op, SAMPLING, is_gpu=is_gpu) for is_gpu in (None, False))
    assert many[: len(few)] == few
    assert len(many) == (3 + len(FURTHER_ON_CPU[op])) * len(few)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_grouped_convolutions_have_every_stride(op: str) -> None:
    grouped = samples_of(op, SAMPLING, is_gpu=False)[3 * SAMPLING.count : 4 * SAMPLING.count]
    assert all(signature.attribute("group", 1) > 1 for signature in grouped)
    strides = {tuple(signature.attribute("strides", [])) for signature in grouped}
    assert strides == {(1, 1), (2, 2)}


def test_kernels_as_large_as_an_image_give_gradients_of_weights() -> None:
    drawn = samples_of("Conv", SAMPLING, is_gpu=False)[4 * SAMPLING.count :]
    assert {signature.attribute("group", 1) > 1 for signature in drawn} == {True, False}
    for signature in drawn:
        model = one_node_model(signature, 1)
        model.graph.output[0].type.tensor_type.ClearField("shape")
        inferred = infer_shapes(model, strict_mode=True).graph.output[0].type.tensor_type.shape
        assert tuple(dim.dim_value for dim in inferred.dim) == signature.outputs[0].shape


def _events(data: Shape, weight: Shape, result: Shape) -> Mapping[str, float]:
    node = make_signature(
        OpKey("", "Conv"),
        inputs=[(FLOAT, data), (FLOAT, weight)],
        outputs=[(FLOAT, result)],
        attributes={"group": 40, "pads": [3] * 4, "kernel_shape": list(weight[2:])},
    )
    return static_events(node, target("cpu_amx"))


def test_sums_of_other_length_are_other_nodes() -> None:
    """A depthwise convolution and the gradient of its weight move the same bytes by the same operations."""
    forward = _events((8, 40, 24, 24), (40, 1, 7, 7), (8, 40, 24, 24))
    gradient = _events((1, 320, 24, 24), (40, 8, 24, 24), (1, 40, 7, 7))
    assert forward["flops"] == gradient["flops"]
    assert forward["sum_length"] == 49
    assert gradient["sum_length"] == 8 * 24 * 24


def test_other_operators_have_no_groups() -> None:
    assert samples_of("Add", SAMPLING, is_gpu=False) == samples_of("Add", SAMPLING)


def test_tiles_tell_sums_of_odd_length_apart() -> None:
    amx = target("cpu_amx")
    nodes = samples_of("MatMul", SAMPLING, is_gpu=False)
    odd = {node: (node.inputs[0].shape or ())[-1] % 2 == 1 for node in nodes if node.inputs[0] is not None}
    assert set(odd.values()) == {True, False}
    assert all(takes_tensor_cores(node, amx, Precision.BF16) is not is_odd for node, is_odd in odd.items())


def test_units_that_take_any_size_tell_groups_apart_and_tensor_cores_alignment() -> None:
    nodes = samples_of("Conv", SAMPLING, is_gpu=False)
    on_cpu = {takes_tensor_cores(node, target("zen4"), Precision.BF16): node for node in nodes}
    assert {units: node.attribute("group", 1) == 1 for units, node in on_cpu.items()} == {
        True: True,
        False: False,
    }
    odd = [node for node in samples_of("MatMul", SAMPLING) if node.inputs[0].shape[-1] % 8]  # type: ignore[union-attr, index]
    assert odd
    assert all(takes_tensor_cores(node, target("zen4"), Precision.BF16) for node in odd)
    assert not any(takes_tensor_cores(node, target("a100"), Precision.BF16) for node in odd)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool", "MatMul"])
def test_bf16_is_measured_at_an_opset_that_has_it(op: str) -> None:
    for node in samples_of(op, SAMPLING):
        assert ports_of(typed(node, Precision.BF16), Precision.BF16).refusal is None
        assert typed(node, Precision.FP16) == node
