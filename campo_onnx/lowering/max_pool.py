"""Max pools as comparisons of slices, where the target's kernel is slow or missing.

OpenVINO's kernel of MaxPool with indices is a reference implementation; ONNX Runtime's CUDA provider has no
kernel of MaxPool from opset 22 on. The windows' elements are slices of the image; the index is that of the
first slice that none exceeds::

    g (float[1, 2, 4, 4] x) => (float[1, 2, 2, 2] y, int64[1, 2, 2, 2] place)
    { y, place = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }

becomes, with slices ``s00`` to ``s11`` and constants for the places of each slice's elements::

    { p1 = Where (GreaterOrEqual (s10, s11), p10, p11)
      m1 = Max (s10, s11) ...
      p3 = Where (GreaterOrEqual (s00, m2), p00, p2)
      y = Max (s00, m2)
      place = Add (Cast <to = 7> (p3), images) }

Nothing is looked for that equals `y`, which a plan may round when it does not round the slices. What a
window sees beyond the image is the pixel at the edge, which it sees anyway.
"""

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.lowering.edit import Edit, replaced
from campo_onnx.lowering.place import Place

_MOST_TAPS = 25
"""Elements of a window, each of which costs four passes over the result."""


def max_pool(imported: Imported, place: Place) -> onnx.ModelProto:
    """Write max pools as slices and comparisons."""
    view = imported.view
    pools = [node for node in view.nodes if node.op.label == "MaxPool"]
    keeps_maxima = all(place.runs(view.signature(node.name)) for node in pools)
    if keeps_maxima and not place.target.runtime.capabilities.indexes_pools_slowly:
        return imported.model
    windows = {
        node.name: window
        for node in pools
        if not keeps_maxima or len(node.outputs) > 1
        if (window := _window(node, view)) is not None
    }
    return replaced(
        imported,
        [node for node in pools if node.name in windows],
        lambda edit, node: _Pool(edit, node, windows[node.name]).write(keeps_maxima=keeps_maxima),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Sizes by spatial axis."""

    image: tuple[int, ...]  # the whole tensor's shape
    result: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]

    @property
    def after(self) -> tuple[int, ...]:
        """Rows that windows reach beyond the end."""
        return tuple(
            max(0, (o - 1) * s + k - n - p)
            for o, s, k, n, p in zip(
                self.result, self.strides, self.kernel, self.image[2:], self.before, strict=True
            )
        )


def _window(node: OpNode, view: GraphView) -> _Window | None:
    shape, result = view.shape(node.inputs[0]), view.shape(node.outputs[0])
    of = node.attributes
    if (
        shape is None
        or result is None
        or 0 in (*shape, *result)
        or not view.is_float32(node.inputs[0])
        or set(of.get("dilations", [1])) != {1}
        or of.get("auto_pad", "NOTSET") != "NOTSET"
        or of.get("storage_order", 0)
        or prod(shape[2:]) > np.iinfo(np.int32).max
        or prod(of["kernel_shape"]) > _MOST_TAPS
    ):
        return None
    count = len(shape) - 2
    return _Window(
        image=tuple(shape),
        result=tuple(result[2:]),
        kernel=tuple(of["kernel_shape"]),
        strides=tuple(of.get("strides", [1] * count)),
        before=tuple(of.get("pads", [0] * 2 * count)[:count]),
    )


class _Pool:
    """The nodes that replace one max pool."""

    def __init__(self, edit: Edit, node: OpNode, window: _Window) -> None:
        self._edit, self._node, self._window = edit, node, window
        self._taps = list(product(*map(range, window.kernel)))

    def write(self, *, keeps_maxima: bool) -> None:
        edit, (y, *places) = self._edit, self._node.outputs
        is_read = bool(places and places[0])
        image = self._with_edges()
        slices = [self._slice(image, tap) for tap in self._taps] if is_read or not keeps_maxima else []
        if keeps_maxima:
            edit.op("MaxPool", self._node.inputs[0], output=y, **self._node.attributes)
        elif not is_read or len(slices) == 1:
            edit.op("Max", *slices, output=y)
        if is_read:
            self._write_places(slices, places[0], "" if keeps_maxima else y)

    def _with_edges(self) -> str:
        window = self._window
        if not any((*window.before, *window.after)):
            return self._node.inputs[0]
        widths = [0, 0, *window.before, 0, 0, *window.after]
        return self._edit.op("Pad", self._node.inputs[0], self._edit.constant(widths), mode="edge")

    def _slice(self, image: str, tap: tuple[int, ...]) -> str:
        window, edit = self._window, self._edit
        sizes = zip(tap, window.result, window.strides, strict=True)
        ends = [first + (o - 1) * s + 1 for first, o, s in sizes]
        axes = [*range(2, len(window.image))]
        bounds = ([*tap], ends, axes, [*window.strides])
        return edit.op("Slice", image, *map(edit.constant, bounds))

    def _write_places(self, slices: list[str], places: str, y: str) -> None:
        """Write the places, and the maxima as `y` where it has a name."""
        edit, window = self._edit, self._window
        numbers = [edit.constant(self._numbers(tap), "place") for tap in self._taps]
        first, largest = numbers[-1], slices[-1]
        for number, seen in reversed([*zip(numbers, slices, strict=True)][:-1]):
            first = edit.op("Where", edit.op("GreaterOrEqual", seen, largest), number, first)
            is_last = seen is slices[0]
            if y or not is_last:
                largest = edit.op("Max", seen, largest, output=y if is_last else "")
        images, size = prod(window.image[:2]), prod(window.image[2:])
        ones = [1] * len(window.kernel)
        start = np.arange(images, dtype=np.int64).reshape(*window.image[:2], *ones) * size
        edit.op(
            "Add", edit.op("Cast", first, to=TensorProto.INT64), edit.constant(start, "images"), output=places
        )

    def _numbers(self, tap: tuple[int, ...]) -> NDArray[np.int32]:
        """Number the pixels that one element of all windows is, within an image."""
        window = self._window
        number = np.zeros((1,) * len(tap), np.int64)
        for axis, first in enumerate(tap):
            n = window.image[2 + axis]
            rows = np.arange(window.result[axis]) * window.strides[axis] + first - window.before[axis]
            along = [-1 if a == axis else 1 for a in range(len(tap))]
            number = number * n + np.clip(rows, 0, n - 1).reshape(along)
        return number.astype(np.int32)[None, None]
