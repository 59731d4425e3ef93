"""Write the pads of a plan: Pad before a matrix product, Slice behind it. Nothing is decided here."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from campo_onnx.ir.edit import read_instead
from campo_onnx.optimize.plan.edits import PadBy, PaddedTensor, PlannedPad


class Topology(Protocol):
    """A graph under edit, with graphsurgeon's nodes and tensors."""

    nodes: list[Any]  # in order; low nodes read and make low tensors already
    initializers: list[TensorProto]

    def new_tensor(self, stem: str) -> Any:
        """Make a tensor with a name of its own, close to `stem`."""

    def new_node(self, op_type: str, stem: str, inputs: Sequence[Any], output: Any) -> Any:
        """Make a node with a name of its own, which stands nowhere yet."""


def insert_pads(topology: Topology, pads: Sequence[PlannedPad], only_padded: AbstractSet[str]) -> None:
    """Carry out the pads of a plan, in place.

    The padded version of a low tensor ``x_fp16`` is called ``x_fp16_padded``. A Pad stands before
    its first reader, a Slice behind the node whose output it cuts.

    `only_padded`: constants, by FP32 name, whose low version is stored with its padding only.
    """
    work = _Padding(topology, only_padded)
    planned = {pad.node: pad for pad in pads}
    nodes, topology.nodes = topology.nodes, []
    for node in nodes:
        if node.name not in planned:
            topology.nodes.append(node)
            continue
        pad = planned[node.name]
        for part in pad.inputs:
            read_instead(node, part.position, work.padded(node.inputs[part.position], part))
        topology.nodes.append(node)
        if pad.output is not None:
            work.lengthen(node, pad.output)
    topology.initializers[:] = [t for t in topology.initializers if t.name not in work.replaced]


class _Padding:
    """One run of :func:`insert_pads`: padded tensors by FP32 name and zeros, outputs apart."""

    def __init__(self, topology: Topology, only_padded: AbstractSet[str]) -> None:
        self.replaced: set[str] = set()  # names of low constants that the plan has padded only
        self._topology = topology
        self._only_padded = only_padded
        self._padded: dict[tuple[str, tuple[int, ...]], Any] = {}
        self._longer_output: dict[str, Any] = {}  # not always zero where it is longer
        self._indices: dict[tuple[int, ...], Any] = {}
        self._stored = {tensor.name: tensor for tensor in topology.initializers}

    def padded(self, low: Any, part: PaddedTensor) -> Any:
        """Return the padded version of a low tensor, made where there is none."""
        if part.by is PadBy.CHAIN:
            return self._longer_output[part.tensor]
        key = (part.tensor, part.ends)
        if key not in self._padded:
            target = self._topology.new_tensor(f"{low.name}_padded")
            if part.by is PadBy.FILE:
                array = numpy_helper.to_array(self._stored[low.name])
                self._store(_with_zeros(array, part.ends), target.name)
                if part.tensor in self._only_padded:
                    self.replaced.add(low.name)
            else:
                zeros = self._index((0,) * len(part.ends) + part.ends)
                self._topology.nodes.append(
                    self._topology.new_node("Pad", f"{low.name}_pad", [low, zeros], target)
                )
            self._padded[key] = target
        return self._padded[key]

    def lengthen(self, node: Any, part: PaddedTensor) -> None:
        """Give a node its padded output, and cut it back where somebody reads it at its own size."""
        low = node.outputs[part.position]
        longer = self._topology.new_tensor(f"{low.name}_padded")
        node.outputs[part.position] = longer
        self._longer_output[part.tensor] = longer
        if part.by is PadBy.SLICE:
            # To the negative of what was appended: open dimensions of other axes do not matter.
            axes = tuple(axis for axis, end in enumerate(part.ends) if end)
            bounds = ((0,) * len(axes), tuple(-part.ends[axis] for axis in axes), axes)
            inputs = [longer, *map(self._index, bounds)]
            self._topology.nodes.append(self._topology.new_node("Slice", f"{low.name}_slice", inputs, low))

    def _index(self, values: tuple[int, ...]) -> Any:
        if values not in self._indices:
            self._indices[values] = self._topology.new_tensor("pad_" + "_".join(map(str, values)))
            self._store(np.array(values, np.int64), self._indices[values].name)
        return self._indices[values]

    def _store(self, array: NDArray[Any], name: str) -> None:
        self._topology.initializers.append(numpy_helper.from_array(array, name))


def _with_zeros(array: NDArray[Any], ends: tuple[int, ...]) -> NDArray[Any]:
    longer = np.zeros(tuple(size + end for size, end in zip(array.shape, ends, strict=True)), array.dtype)
    longer[tuple(slice(size) for size in array.shape)] = array
    return longer
