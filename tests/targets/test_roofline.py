"""Shares of a chip that products fill, and times of nodes of any size, padded or low, by signature."""

import pytest

from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.gemms import GemmShape
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.multiples import Multiples
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import FLOAT, make_signature
from campo_onnx.targets.roofline import cast_us, copy_us, node_time, utilization
from campo_onnx.targets.target import target

V100 = target("v100")
FP16 = Precision.FP16
PRODUCT = make_signature(
    OpKey("", "MatMul"), [(FLOAT, (512, 1001)), (FLOAT, (1001, 512))], [(FLOAT, (512, 512))]
)
PORTS = ports_of(PRODUCT, FP16)


def test_small_products_do_not_fill_the_chip() -> None:
    assert utilization(GemmShape(m=64, n=64, k=64), 10) == 0.1
    assert utilization(GemmShape(m=64, n=64, k=64, batch=4), 10) == 0.4
    assert utilization(GemmShape(m=65, n=64, k=64), 10) == 0.2
    assert utilization(GemmShape(m=64, n=64, k=5 * 1024), 10) == 0.5  # a weight gradient splits its sum
    assert utilization(GemmShape(m=4096, n=4096, k=64), 10) == 1.0
    assert utilization(GemmShape(m=0, n=4096, k=64), 10) == 0.1  # empty, not a division by zero


def test_a_padded_product_is_the_same_node_on_longer_tensors() -> None:
    padded = PRODUCT.with_shapes({0: (512, 1008), 1: (1008, 512)})
    odd, aligned = (node_time(signature, PORTS, V100, FP16) for signature in (PRODUCT, padded))
    assert (odd.on_tensor_cores, aligned.on_tensor_cores) == (False, True)
    assert aligned.time_us < odd.time_us


def test_without_arithmetic_in_it_a_precision_costs_its_casts() -> None:
    cpu = target("cpu")
    fp32, low = (node_time(PRODUCT, PORTS, cpu, precision).time_us for precision in (Precision.FP32, FP16))
    casts_us = sum(cast_us(operand.elements, cpu, FP16) for operand in PRODUCT.operands)
    assert low == pytest.approx(fp32 + casts_us)


def test_tensor_cores_load_sixteen_bytes() -> None:
    multiples = [V100.hardware.multiples(p) for p in (Precision.FP32, FP16, Precision.BF16)]
    assert multiples == [Multiples.of_all(4), Multiples.of_all(8), Multiples.of_all(8)]


def test_a_copy_costs_its_bytes_and_a_launch() -> None:
    assert copy_us(0, V100) == V100.launch_us
    assert copy_us(V100.hardware.effective_bytes_per_us, V100) == pytest.approx(1 + V100.launch_us)
