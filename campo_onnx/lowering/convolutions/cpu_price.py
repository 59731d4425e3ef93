"""Times of nodes on a CPU, for choosing among forms of one computation, from figures of the target."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from campo_onnx.ops.facts import moved_bytes, ports_of, work_of
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Operand, Shape, Signature
from campo_onnx.ops.work import HOST_ONLY
from campo_onnx.runtime.overhead import CpuKernels
from campo_onnx.targets.target import Target

_LINE = 16
"""Elements of a cache line."""


def node_us(signature: Signature, target: Target) -> float:
    """Estimate a node whose shapes are known."""
    kernels = target.cpu_kernels
    if work_of(signature).kind in HOST_ONLY:
        return kernels.view_us
    return kernels.node_us + _kernel_us(signature, kernels)


def _kernel_us(signature: Signature, kernels: CpuKernels) -> float:
    attributes = signature.attributes
    inputs, result = [_shape(operand) for operand in signature.inputs], _shape(signature.outputs[0])
    moved_us = moved_bytes(signature, ports_of(signature, Precision.FP16), None) / _bytes_per_us(kernels)
    match signature.op.op_type:
        case "Conv":
            return _conv_us(inputs[1], result, attributes, kernels)
        case "ConvTranspose":
            return _conv_transpose_us(inputs[0], inputs[1], attributes, kernels)
        case "Transpose":
            return _transpose_us(result, attributes["perm"], kernels)
        case "Gather":
            row = math.prod(inputs[0][attributes.get("axis", 0) + 1 :])
            return _copied_us(result, row, kernels) / 2  # on all threads
        case "Slice" if len(inputs) > 4:
            return _copied_us(result, 1, kernels)
        case "Pad" | "Slice" | "Concat":
            return _copied_us(result, result[-1], kernels)
        case "ReduceSum":
            return moved_us + math.prod(result[:-1]) * kernels.sum_us
    rate, columns = kernels.gemm_gflop_per_s * 1e3, kernels.gemm_columns
    products_us = sum(gemm.flops * (1 + columns / gemm.n) / rate for gemm in work_of(signature).gemms)
    return products_us or moved_us


def _bytes_per_us(kernels: CpuKernels) -> float:
    return kernels.memory_gb_per_s * 1e3


def _shape(operand: Operand | None) -> Shape:
    return (operand.shape if operand is not None else None) or ()


def _copied_us(result: Shape, width: int, kernels: CpuKernels) -> float:
    """Copy rows of so many elements."""
    elements = math.prod(result)
    return elements / max(1, width) * kernels.row_us + elements * 8 / _bytes_per_us(kernels)


def _transpose_us(result: Shape, perm: Sequence[int], kernels: CpuKernels) -> float:
    unmoved = 1
    for axis in reversed(range(len(perm))):
        if perm[axis] != axis:
            break
        unmoved *= result[axis]
    if unmoved > 1:
        return _copied_us(result, unmoved, kernels)
    element_us = kernels.element_us if result[-1] < _LINE else kernels.long_row_element_us
    return math.prod(result) * element_us


def _conv_us(kernel: Shape, result: Shape, attributes: Mapping[str, Any], kernels: CpuKernels) -> float:
    groups: int = attributes.get("group", 1)
    batch, filters, *sizes = result
    positions, seen = math.prod(sizes), math.prod(kernel[1:])
    gathered = batch * groups * seen * positions
    flops = 2.0 * batch * seen * (positions + kernels.conv_positions)
    filter_us = flops / (kernels.conv_gflop_per_s * 1e3)
    if groups > 1:
        patch_us = kernels.group_patch_us
        if kernel[1] > 1:  # the patches of several channels are copied in rows as long as the result's
            patch_us = max(patch_us, kernels.row_us / sizes[-1])
        return filters * filter_us + gathered * patch_us + batch * groups * kernels.group_us
    products_us = (filters + kernels.conv_filters) * filter_us
    if math.prod(kernel[2:]) == 1 and max(attributes.get("strides", [1])) == 1:
        return products_us + batch * kernels.pointwise_image_us
    if filters <= positions:
        return products_us + batch * kernels.image_us
    return products_us + gathered * kernels.element_us + batch * kernels.small_image_us


def _conv_transpose_us(
    image: Shape, kernel: Shape, attributes: Mapping[str, Any], kernels: CpuKernels
) -> float:
    groups: int = attributes.get("group", 1)
    batch, filters, *sizes = image
    positions, written = math.prod(sizes), math.prod(kernel[1:])
    added = batch * groups * written * positions
    flops = 2.0 * batch * filters * written * (positions + kernels.transposed_positions)
    products_us = flops / (kernels.conv_gflop_per_s * 1e3)
    if groups > 1:
        groups_us = batch * groups * kernels.transposed_group_us
        return products_us + added * kernels.transposed_group_sum_us + groups_us
    rows_us = added / sizes[-1] * kernels.transposed_row_us
    sums_us = added * kernels.transposed_sum_us
    return products_us + sums_us + rows_us + batch * kernels.transposed_image_us
