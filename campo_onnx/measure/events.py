"""Events of a node in FP32: what Eq. 2 predicts its low-precision time from.

The Campo paper reads hardware counters. These are derived from shapes and the measured FP32 time,
so they exist everywhere, also for a device that is not there; each stands for one of the paper's.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from campo_onnx.ops.signature import Signature
    from campo_onnx.targets.target import Target

ALIGNMENT_ELEMENTS = 8
"""Multiple that FP16 tensor cores want of every dimension of a product."""

_THREADS_PER_SM = 2048

EVENTS = (
    "moved_bytes",  # global memory loads and stores
    "flops",  # instructions
    "flops_per_byte",  # intensity
    "bytes_per_us",  # load and store throughput
    "flops_per_us",  # instructions per cycle
    "occupancy",  # share of the chip's threads that there is work for
    "waves",  # how often over
    "utilization",  # the same for the thread blocks of a matrix product
    "working_set_over_l2",  # L2 misses
    "alignment",  # share of the dimensions tensor cores take unpadded
    "sum_length",  # products that one element of a matrix product adds up: long sums run in other kernels
    "rows",  # of the first matrix, or those that are reduced or normalized one by one
    "channels",  # that a convolution adds up over, in a group: for one there are other kernels
)
"""Names, in the order of columns."""

RATES = frozenset({"bytes_per_us", "flops_per_us"})
"""Events that need a measured FP32 time; all others follow from shapes."""


STATIC_EVENTS = (*(event for event in EVENTS if event not in RATES), "beyond_l2_bytes")
"""Events that follow from shapes: what FP32 times are predicted from."""


def static_events(signature: "Signature", target: "Target") -> Mapping[str, float]:
    """Events that follow from shapes alone, and what FP32 times are predicted from."""
    from campo_onnx.ops.facts import moved_bytes, work_of  # lists of devices need the names alone
    from campo_onnx.ops.ports import Ports
    from campo_onnx.targets.roofline import utilization

    work, traffic = work_of(signature), moved_bytes(signature, Ports(), None)
    elements = max((operand.elements for operand in signature.operands), default=0)
    waves = elements / (target.hardware.sm_count * _THREADS_PER_SM)
    dims = [dim for gemm in work.gemms for dim in (gemm.channels or (gemm.m, gemm.n, gemm.k))]
    aligned = sum(dim % ALIGNMENT_ELEMENTS == 0 for dim in dims)
    return {
        "moved_bytes": traffic,
        "flops": work.flops,
        "flops_per_byte": work.flops / traffic if traffic else 0.0,
        "occupancy": min(1.0, waves),
        "waves": waves,
        "utilization": min((utilization(gemm, target.hardware.sm_count) for gemm in work.gemms), default=1.0),
        "working_set_over_l2": signature.nbytes / target.hardware.l2_bytes,
        "beyond_l2_bytes": max(0.0, signature.nbytes - target.hardware.l2_bytes),
        "alignment": aligned / len(dims) if dims else 1.0,
        "sum_length": max((gemm.k for gemm in work.gemms), default=0),
        "rows": max((gemm.m for gemm in work.gemms), default=work.rows),
        "channels": min((gemm.channels[0] for gemm in work.gemms if gemm.channels), default=0),
    }


def events_of(signature: "Signature", fp32_us: float, target: "Target") -> Mapping[str, float]:
    """All events of a node whose FP32 time is known, in the order of :data:`EVENTS`."""
    static = static_events(signature, target)
    is_timed = fp32_us > 0 and math.isfinite(fp32_us)
    rates = {
        "bytes_per_us": static["moved_bytes"] / fp32_us if is_timed else 0.0,
        "flops_per_us": static["flops"] / fp32_us if is_timed else 0.0,
    }
    events = {**static, **rates}
    return {name: events[name] for name in EVENTS}
