"""Execution of each operator by torch: what calls a library, and what becomes generated kernels.

A generated kernel computes in FP32 and reads and writes tensors in the types of the graph. Products,
convolutions and attention are calls of a library, which multiplies in the types of its operands and adds up
in FP32. ``tests/runtime/torch/test_kernels.py`` holds the table against what is translated and called.
"""

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.machine import CPU

COLUMNS = ("domain", "op_type", "low", "fp16_on_cpu")


class Row(NamedTuple):
    """Support of one operator in low precision."""

    low: Support
    fp16_on_cpu: Support


@cache
def table() -> Mapping[OpKey, Row]:
    """All rows, by operator."""
    with files(__package__).joinpath("kernels.csv").open(encoding="utf-8") as lines:
        return {
            OpKey(row["domain"], row["op_type"]): Row(Support(row["low"]), Support(row["fp16_on_cpu"]))
            for row in csv.DictReader(lines)
        }


def support(signature: Signature, processor: str, precision: Precision) -> Support:
    """Say how a node runs in a precision.

    What is not translated is refused, and so are products and convolutions in FP16 on a CPU: on one without
    units for it they take 7 to 90 times as long as in FP32 (measured with torch 2.13 on a Zen 5).
    """
    row = table().get(signature.op)
    if row is None:
        return Support.REFUSED
    if precision is Precision.FP32:
        return Support.NATIVE
    return row.fp16_on_cpu if processor == CPU and precision is Precision.FP16 else row.low


def sums_low(signature: Signature, precision: Precision) -> bool:
    """Say whether a node's sums are accumulated in the low precision itself.

    A scatter adds each update to memory of the type of its result. Other sums are in FP32.
    """
    is_scatter = signature.op in _SCATTERS and signature.attribute("reduction", "none") != "none"
    return precision is not Precision.FP32 and is_scatter


_SCATTERS = frozenset({OpKey("", "ScatterElements"), OpKey("", "ScatterND")})
