"""Replacing nodes of an ONNX graph by others: names, constants and order are seen to here."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from campo_onnx.ir.importer import Imported
from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.sort import fresh, tensor_names
from campo_onnx.ir.view import OpNode


class Edit:
    """The nodes that take the place of one node.

    `stem`: first part of the names of what is added.
    `taken`: names of nodes and tensors of the graph; grows by those added.
    `constants`: initializers of the graph; grows likewise.
    `added`: names of initializers that were added, by their values: equal ones are one.
    """

    def __init__(self, stem: str, taken: set[str], constants: Any, added: dict[tuple[Any, ...], str]) -> None:
        self.nodes: list[NodeProto] = []
        self._stem, self._taken, self._constants, self._added = stem, taken, constants, added

    def constant(self, array: NDArray[Any] | np.generic | Sequence[int], kind: str = "constant") -> str:
        """Add an initializer; a sequence of integers is int64. Returns its name."""
        value = np.asarray(array, None if isinstance(array, (np.ndarray, np.generic)) else np.int64)
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._added:
            self._added[key] = self._name(kind)
            self._constants.append(numpy_helper.from_array(value, self._added[key]))
        return self._added[key]

    def op(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node of the standard domain with one output. Returns the output's name.

        An input that is left out is ``""``. `output` names the output where it replaces a tensor of the
        graph; else it gets a new name.
        """
        name = self._name(op_type)
        output = output or name
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))
        return output

    def _name(self, kind: str) -> str:
        return fresh(f"{self._stem}/{kind}", self._taken)


OLDEST_OPSET = 13
"""Nodes are written as this opset and newer ones have them."""

Replacement: TypeAlias = Callable[[Edit, OpNode], None]
"""Adds to an :class:`Edit` what computes the outputs of a node."""


def replaced(imported: Imported, nodes: Sequence[OpNode], replacement: Replacement) -> onnx.ModelProto:
    """Put other nodes in the place of some.

    It is the model itself where there is nothing to replace, or its opset is older than passes write.
    """
    if not nodes or imported.view.opset.get("", 0) < OLDEST_OPSET:
        return imported.model
    model = deepcopy(imported.model)
    graph = model.graph
    chosen = {node.name: node for node in nodes}
    taken = tensor_names(graph) | {node.name for node in graph.node}
    result: list[NodeProto] = []
    added: dict[tuple[Any, ...], str] = {}
    for node in graph.node:
        if node.name not in chosen:
            result.append(node)
            continue
        edit = Edit(node.name, taken, graph.initializer, added)
        replacement(edit, chosen[node.name])
        result += edit.nodes
    replace_items(graph.node, result)
    return model
