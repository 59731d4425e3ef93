"""The time of a node on a target, from its figures: its bytes or its FLOPs, whichever takes longer.

Good for telling which nodes gain and by how much, roughly; not for predicting a step.
"""

import math
from typing import NamedTuple

from campo_onnx.ops.facts import moved_bytes, work_of
from campo_onnx.ops.gemms import GemmShape
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision, precisions
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.work import HOST_ONLY
from campo_onnx.runtime.api import Support
from campo_onnx.targets.target import Target

TILE = 64
"""Rows and columns of the result that one thread block makes; libraries go down to this size."""

SPLIT_K = 1024
"""Length of a sum from which libraries give parts of it to further thread blocks."""


class Estimate(NamedTuple):
    """Time of a node in one precision."""

    time_us: float
    on_tensor_cores: bool


def node_time(signature: Signature, ports: Ports, target: Target, precision: Precision) -> Estimate:
    """Estimate a node in a precision, without any Cast.

    `ports`: which of its tensors change type with it; one that refuses runs in what it is given in.
    `precision`: FP32, or the low precision of those tensors.
    """
    work = work_of(signature)
    if work.kind in HOST_ONLY:
        return Estimate(target.host_us, False)
    if ports.refusal:
        precision = _given_precision(signature, target)
    elif not target.computes_in(precision) or target.support(signature, precision) is Support.UPCAST:
        # The runtime puts Casts around its FP32 kernel.
        fp32_us = node_time(signature, ports, target, Precision.FP32).time_us
        return Estimate(fp32_us + _surrounding_casts_us(signature, ports, target, precision), False)
    traffic_bytes = moved_bytes(signature, ports, None if precision is Precision.FP32 else precision)
    if target.support(signature, precision) is Support.STORAGE:
        precision = Precision.FP32  # of the arithmetic; bytes are low
    rates = [gemm_rate(gemm, target, precision) for gemm in work.gemms]
    if rates:
        seconds = sum(gemm.flops / rate for gemm, (rate, _) in zip(work.gemms, rates, strict=True))
    else:
        seconds = work.flops / _stream_rate(target, precision)
    launches = sum(gemm.steps for gemm in work.gemms) or 1
    time_us = (
        max(traffic_bytes / target.hardware.effective_bytes_per_us, seconds * 1e6)
        + launches * target.launch_us
    )
    return Estimate(time_us, bool(rates) and all(on_tensor_cores for _, on_tensor_cores in rates))


def _given_precision(signature: Signature, target: Target) -> Precision:
    """The precision of a node's data in the given graph, which may be low there already."""
    by_dtype = {precision.onnx_dtype: precision for precision in precisions()}
    operands = (*signature.inputs, *signature.outputs)
    dtypes = (operand.dtype for operand in operands if operand is not None)
    chosen = next((by_dtype[dtype] for dtype in dtypes if dtype in by_dtype), Precision.FP32)
    return chosen if target.computes_in(chosen) else Precision.FP32


def _surrounding_casts_us(signature: Signature, ports: Ports, target: Target, precision: Precision) -> float:
    operands = ports.low_among(signature.inputs, signature.outputs)
    return sum(cast_us(operand.elements, target, precision) for operand in operands if operand is not None)


def cast_us_per_element(target: Target, precision: Precision) -> float:
    """Time of one more element in a Cast between FP32 and a low precision."""
    return (Precision.FP32.itemsize_bytes + precision.itemsize_bytes) / target.hardware.effective_bytes_per_us


def cast_us(elements: int, target: Target, precision: Precision) -> float:
    """Estimate a Cast between FP32 and a low precision, in either direction."""
    return cast_us_per_element(target, precision) * elements + target.launch_us


def copy_us(traffic_bytes: float, target: Target) -> float:
    """Estimate a node that only moves bytes, such as Pad and Slice; what it reads and writes counts."""
    return traffic_bytes / target.hardware.effective_bytes_per_us + target.launch_us


def utilization(gemm: GemmShape, sm_count: int) -> float:
    """Share of the chip that a product fills, in (0, 1]: its thread blocks against the SMs.

    >>> utilization(GemmShape(m=64, n=64 * 20, k=512), sm_count=80)
    0.25
    """
    tiles = math.ceil(gemm.m / TILE) * math.ceil(gemm.n / TILE)
    blocks = tiles * math.ceil(gemm.k / SPLIT_K) * gemm.batch
    return min(1.0, max(1, blocks) / sm_count)


def gemm_rate(gemm: GemmShape, target: Target, precision: Precision) -> tuple[float, bool]:
    """FLOPs per second of a product, and whether that is on tensor cores.

    Libraries take the faster of both. On CUDA cores FP16 and BF16 products run at the FP32 rate,
    because they accumulate in FP32.
    """
    used = utilization(gemm, target.hardware.sm_count)
    plain = target.hardware.fp32_flops_per_s * target.hardware.efficiency.cuda_cores * used
    peak = target.tensor_flops_per_s(precision)
    if peak is None:
        return plain, False
    aligned = gemm.is_aligned(target.hardware.multiples(precision))
    share = target.hardware.efficiency.tensor_cores * (
        1.0 if aligned else target.hardware.efficiency.unaligned
    )
    return max((plain, False), (peak * share * used, True))


def _stream_rate(target: Target, precision: Precision) -> float:
    # Without vector units for it, elementwise kernels compute in FP32.
    peak = target.hardware.vector_flops_per_s(precision) or target.hardware.fp32_flops_per_s
    return peak * target.hardware.efficiency.cuda_cores
