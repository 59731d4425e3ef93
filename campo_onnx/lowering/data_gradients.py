"""Transposed convolutions of stride 1 as convolutions with the kernel turned round.

That is the gradient of what a convolution read. ONNX Runtime's CUDA provider has no BF16 kernel of
ConvTranspose, and has one of Conv::

    g (float[1, 4, 6, 6] dy, float[4, 3, 3, 3] w) => (float[1, 3, 8, 8] dx)
    { dx = ConvTranspose (dy, w) }

becomes::

    g (float[1, 4, 6, 6] dy, float[4, 3, 3, 3] w) => (float[1, 3, 8, 8] dx)
    <int64[2] last = {-1, -1}, int64[2] before = {-9223372036854775808, -9223372036854775808},
     int64[2] axes = {2, 3}, int64[2] back = {-1, -1}>
    {
        turned = Slice (w, last, before, axes, back)
        kernel = Transpose <perm = [1, 0, 2, 3]> (turned)
        dx = Conv <pads = [2, 2, 2, 2]> (dy, kernel)
    }

A kernel of one tap needs no Slice; of several groups, the channels of each are swapped apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.lowering.edit import Edit, replaced
from campo_onnx.lowering.place import Place
from campo_onnx.ops.precision import Precision


def data_gradients(imported: Imported, place: Place) -> onnx.ModelProto:
    """Write transposed convolutions as convolutions where only these have a BF16 kernel."""
    if place.computes("ConvTranspose", Precision.BF16):
        return imported.model
    view = imported.view
    nodes = [node for node in view.nodes if node.op.label == "ConvTranspose"]
    chosen = {node.name: settings for node in nodes if (settings := _settings(node, view)) is not None}
    nodes = [node for node in nodes if node.name in chosen]
    return replaced(imported, nodes, lambda edit, node: _turned(edit, node, chosen[node.name]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    weight: tuple[int, ...]
    groups: int
    dilations: tuple[int, ...]
    pads: tuple[int, ...]  # of the convolution


def _settings(node: OpNode, view: GraphView) -> _Settings | None:
    """Give the convolution that a node is, or None where it is none."""
    image, weight = view.shape(node.inputs[0]), view.shape(node.inputs[1])
    result = view.shape(node.outputs[0])
    if image is None or weight is None or result is None or 0 in (*image, *weight, *result):
        return None
    count = len(weight) - 2
    of = node.attributes
    dilations = tuple(of.get("dilations", [1] * count))
    pads, extra = tuple(of.get("pads", [0] * 2 * count)), tuple(of.get("output_padding", [0] * count))
    if max(of.get("strides", [1]), default=1) > 1 or of.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    if "output_shape" in of:
        return None  # then the pads are whatever leads to it
    reach = tuple(d * (k - 1) for d, k in zip(dilations, weight[2:], strict=True))
    before = tuple(r - p for r, p in zip(reach, pads[:count], strict=True))
    after = tuple(r - p + e for r, p, e in zip(reach, pads[count:], extra, strict=True))
    if min((*before, *after), default=0) < 0:
        return None
    groups = int(of.get("group", 1))
    return _Settings(weight=weight, groups=groups, dilations=dilations, pads=before + after)


def _turned(edit: Edit, node: OpNode, settings: _Settings) -> None:
    gradient, weight, *bias = node.inputs
    shape = settings.weight
    spatial = range(2, len(shape))
    if max(shape[2:], default=1) > 1:
        least = np.iinfo(np.int64).min
        bounds = ([-1] * len(spatial), [least] * len(spatial), [*spatial], [-1] * len(spatial))
        weight = edit.op("Slice", weight, *map(edit.constant, bounds))
    kernel = _swapped(edit, weight, shape, settings.groups)
    edit.op(
        "Conv", gradient, kernel, *bias, output=node.outputs[0],
        kernel_shape=list(shape[2:]), pads=list(settings.pads), dilations=list(settings.dilations),
        group=settings.groups,
    )  # fmt: skip


def _swapped(edit: Edit, weight: str, shape: Sequence[int], groups: int) -> str:
    """Swap the two channel axes of a weight, within each group."""
    spatial = [*shape[2:]]
    if groups == 1:
        return edit.op("Transpose", weight, perm=[1, 0, *range(2, len(shape))])
    outputs, channels = shape[0] // groups, shape[1]
    apart = edit.op("Reshape", weight, edit.constant([groups, outputs, channels, *spatial]))
    turned = edit.op("Transpose", apart, perm=[0, 2, 1, *range(3, len(shape) + 1)])
    return edit.op("Reshape", turned, edit.constant([groups * channels, outputs, *spatial]))
