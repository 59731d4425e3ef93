"""Times of nodes in ONNX Runtime's CPU provider, for choosing among forms of one computation.

Fitted to nodes of ResNet-18, MobileNetV3 and small variants of other networks, in ONNX Runtime 1.31.1 on two
threads of an EPYC with AVX-512. What forms differ by are kernels that run on one thread whatever there is,
and those that take a batch image by image; on other CPUs too.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from campo_onnx.ops.facts import moved_bytes, ports_of, work_of
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Operand, Shape, Signature
from campo_onnx.ops.work import HOST_ONLY

_GEMM_FLOPS_PER_US = 190e3
_CONV_FLOPS_PER_US = 165e3
_BYTES_PER_US = 20e3
_NODE_US = 3.0
_ROW_US = 6e-3  # of beginning to copy another piece of memory
_ELEMENT_US = 1e-3  # of moving elements one by one, on one thread
_IMAGE_US = 10.0  # of dealing an image out to the threads
_GROUP_US = 0.15
_SUM_US = 0.03  # of beginning another row of sums


def node_us(signature: Signature) -> float:
    """Estimate a node whose shapes are known."""
    work = work_of(signature)
    if work.kind in HOST_ONLY:
        return 1.0
    attributes = signature.attributes
    inputs, result = [_shape(operand) for operand in signature.inputs], _shape(signature.outputs[0])
    moved_us = moved_bytes(signature, ports_of(signature, Precision.FP16), None) / _BYTES_PER_US
    match signature.op.op_type:
        case "Conv":
            return _NODE_US + _conv_us(inputs[1], result, attributes)
        case "ConvTranspose":
            return _NODE_US + _conv_transpose_us(inputs[0], inputs[1], attributes)
        case "Transpose":
            return _NODE_US + _transpose_us(result, attributes["perm"])
        case "Gather":
            row = math.prod(inputs[0][attributes.get("axis", 0) + 1 :])
            return _NODE_US + _copied_us(result, row) / 2  # on all threads
        case "Slice" if len(inputs) > 4:
            return _NODE_US + _copied_us(result, 1)
        case "Pad" | "Slice" | "Concat":
            return _NODE_US + _copied_us(result, result[-1])
        case "ReduceSum":
            return _NODE_US + moved_us + math.prod(result[:-1]) * _SUM_US
    products = sum(gemm.flops * (1 + 6 / gemm.n) / _GEMM_FLOPS_PER_US for gemm in work.gemms)
    return _NODE_US + (products or moved_us)


def _shape(operand: Operand | None) -> Shape:
    return (operand.shape if operand is not None else None) or ()


def _copied_us(result: Shape, width: int) -> float:
    """Copy rows of so many elements."""
    elements = math.prod(result)
    return elements / max(1, width) * _ROW_US + elements * 8 / _BYTES_PER_US


def _transpose_us(result: Shape, perm: Sequence[int]) -> float:
    unmoved = 1
    for axis in reversed(range(len(perm))):
        if perm[axis] != axis:
            break
        unmoved *= result[axis]
    if unmoved > 1:
        return _copied_us(result, unmoved)
    return math.prod(result) * _ELEMENT_US * (1.0 if result[-1] < 16 else 0.4)


def _conv_us(kernel: Shape, result: Shape, attributes: Mapping[str, Any]) -> float:
    groups: int = attributes.get("group", 1)
    batch, filters, *sizes = result
    positions, seen = math.prod(sizes), math.prod(kernel[1:])
    gathered = batch * groups * seen * positions
    if groups > 1:
        products = 2.0 * batch * filters * seen * (positions + 6) / _CONV_FLOPS_PER_US
        return products + gathered * 0.25e-3 + batch * groups * _GROUP_US
    products = 2.0 * batch * (filters + 4) * seen * (positions + 6) / _CONV_FLOPS_PER_US
    if math.prod(kernel[2:]) == 1 and max(attributes.get("strides", [1])) == 1:
        return products + batch * _IMAGE_US / 10
    if filters <= positions:
        return products + batch * _IMAGE_US / 2
    # The patches of small images are made on one thread.
    return products + gathered * _ELEMENT_US + batch * _IMAGE_US


def _conv_transpose_us(image: Shape, kernel: Shape, attributes: Mapping[str, Any]) -> float:
    groups: int = attributes.get("group", 1)
    batch, filters, *sizes = image
    positions, written = math.prod(sizes), math.prod(kernel[1:])
    added = batch * groups * written * positions  # on one thread
    products = 2.0 * batch * filters * written * (positions + 14) / _CONV_FLOPS_PER_US
    if groups > 1:
        return products + added * 0.4e-3 + batch * groups * 0.2
    return products + added * 1e-4 + added / sizes[-1] * 3e-3 + batch * 8.0
