"""Products cut along the axis of their sums into sums that an integer holds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import NodeProto

from campo_onnx.errors import UnsupportedModelError

PRODUCTS = frozenset({"Conv", "ConvTranspose", "FusedMatMul", "Gemm", "MatMul"})
"""Operators that multiply two tensors and sum over a common axis."""

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """A product, cut along the axis that it sums over."""

    node: NodeProto
    axes: tuple[int, int]  # that axis, in the first and the second factor
    # length, count: indices in a block, and how many blocks there are.
    length: int
    count: int
    # alpha, beta: factors of the product and of what is added to it.
    alpha: float = 1.0
    beta: float = 1.0
    added: str = ""  # what is added to it; `""` if nothing is
    # is_per_channel, spatial: whether that is a value a channel, of so many spatial axes.
    is_per_channel: bool = False
    spatial: int = 0


def blocks_of(node: NodeProto, shapes: Sequence[tuple[int | str | None, ...] | None], chain: int) -> Blocks:
    """Cut a product into sums of `chain` products each.

    `chain`: products in a sum. Those of a convolution take whole kernels.

    Raises UnsupportedModelError if sizes are not known, or the sums of a grouped convolution are longer than
    `chain`.
    """
    first, second = (_static(shape, node) for shape in shapes)
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    added = node.input[2] if len(node.input) > 2 else ""
    if node.op_type in _CONVOLUTIONS:
        kernel, axes = math.prod(second[2:]), (1, 1 if node.op_type == "Conv" else 0)
        groups, summed = int(attributes.get("group", 1)), first[1]
        if groups > 1:
            if summed // groups * kernel > chain:
                raise UnsupportedModelError(
                    f"node {node.name!r} is a convolution in groups whose sums are longer than {chain}",
                    remedy="Keep it in FP32.",
                )
            length = summed
        else:
            length = max(1, chain // kernel)
        return Blocks(
            node=node,
            axes=axes,
            length=length,
            count=math.ceil(summed / length),
            added=added,
            is_per_channel=True,
            spatial=len(second) - 2,
        )
    if attributes.get("transBatchA") or attributes.get("transBatchB"):
        raise UnsupportedModelError(f"node {node.name!r} moves batches to the front of a product")
    axes = (
        len(first) - (2 if attributes.get("transA") else 1),
        max(0, len(second) - (1 if attributes.get("transB") else 2)),
    )
    return Blocks(
        node=node,
        axes=axes,
        length=chain,
        count=math.ceil(first[axes[0]] / chain),
        alpha=float(attributes.get("alpha", 1.0)),
        beta=float(attributes.get("beta", 1.0)),
        added=added,
    )


def _static(shape: tuple[int | str | None, ...] | None, node: NodeProto) -> tuple[int, ...]:
    if shape is None or not all(isinstance(size, int) for size in shape):
        raise UnsupportedModelError(
            f"node {node.name!r} multiplies tensors whose sizes are not known",
            remedy="Bind its dimensions with --dim.",
        )
    return tuple(size for size in shape if isinstance(size, int))
