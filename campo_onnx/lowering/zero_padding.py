"""Zeros around a tensor by Concat where the target pads no BF16 tensors.

::

    g (float[2, 3] x, int64[4] pads) => (float[2, 5] y)
    { y = Pad (x, pads) }

becomes, where `pads` is the constant ``{0, 1, 0, 1}``::

    g (float[2, 3] x) => (float[2, 5] y)
    <float[2, 1] zeros = {0, 0}>
    { y = Concat <axis = 1> (zeros, x, zeros) }

with one Concat for each axis that is padded, from the last to the first. Cropping, which a negative width
asks for, stays as it is, and so does padding of more than :data:`_LARGEST` zeros on a side.
"""

from math import prod
from typing import NamedTuple

import numpy as np
import onnx

from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.lowering.edit import Edit, replaced
from campo_onnx.lowering.place import Place
from campo_onnx.ops.precision import Precision

_LARGEST = 1 << 20
"""Zeros in one constant of the file, 4 MiB."""


def zero_padding(imported: Imported, place: Place) -> onnx.ModelProto:
    """Write zero padding as Concat where only that has a BF16 kernel."""
    if place.computes("Pad", Precision.BF16):
        return imported.model
    view = imported.view
    sides = {node.name: _sides(node, view) for node in view.nodes if node.op.label == "Pad"}

    def replacement(edit: Edit, node: OpNode) -> None:
        tensor = node.inputs[0]
        for side in sides[node.name]:
            before, after = (
                [edit.constant(np.zeros(shape, np.float32), "zeros")] if shape else []
                for shape in (side.before, side.after)
            )
            output = node.outputs[0] if side is sides[node.name][-1] else ""
            tensor = edit.op("Concat", *before, tensor, *after, axis=side.axis, output=output)

    return replaced(imported, [node for node in view.nodes if sides.get(node.name)], replacement)


class _Side(NamedTuple):
    """Zeros before and behind along one axis, by their shapes; ``()`` for none."""

    axis: int
    before: tuple[int, ...]
    after: tuple[int, ...]


def _sides(node: OpNode, view: GraphView) -> list[_Side]:
    """List the axes that are padded with zeros, the last axis first; none for another Pad."""
    if len(node.inputs) < 2:  # an opset that has widths as an attribute
        return []
    shape, widths = view.shape(node.inputs[0]), view.values.get(node.inputs[1])
    fill = node.inputs[2] if len(node.inputs) > 2 else ""
    if (
        shape is None
        or widths is None
        or (len(node.inputs) > 3 and node.inputs[3])
        or not view.is_float32(node.inputs[0])
        or node.attributes.get("mode", "constant") != "constant"
        or (fill and (fill not in view.values or np.any(view.values[fill])))
    ):
        return []
    rank = len(shape)
    before, after = (tuple(map(int, half)) for half in (widths[:rank], widths[rank:]))
    if min((*before, *after), default=0) < 0:
        return []
    size, sides = list(shape), []
    for axis in reversed(range(rank)):
        if before[axis] or after[axis]:
            shapes = [
                (*size[:axis], width, *size[axis + 1 :]) if width else ()
                for width in (before[axis], after[axis])
            ]
            sides.append(_Side(axis, *shapes))
            size[axis] += before[axis] + after[axis]
    is_small = all(prod(shape) <= _LARGEST for side in sides for shape in side[1:])
    return sides if is_small else []
