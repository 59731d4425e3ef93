"""A model as a function of torch tensors."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType

import onnx.defs
import onnx.inliner
import torch
from onnx import ModelProto, NodeProto, TensorProto

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.constants import write_out_sparse
from campo_onnx.ir.domains import shorten_domains
from campo_onnx.ir.inline import inline_functions
from campo_onnx.ir.opsets import at_readable_opset
from campo_onnx.ir.sort import graphs_of, name_nodes, sort_nodes, with_bodies
from campo_onnx.ops.key import CONSTANT, OpKey
from campo_onnx.runtime.torch.translation.graph import Graph, Origin
from campo_onnx.runtime.torch.translation.raising import raised
from campo_onnx.runtime.torch.translation.table import TABLE
from campo_onnx.runtime.torch.translation.values import dtype_of


class Translation:
    """A model as a function of its inputs, in order, that returns its outputs, in order."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.inputs: tuple[str, ...] = graph.inputs  # those that are not initializers
        self.outputs: tuple[str, ...] = graph.outputs
        self.constants: Mapping[str, torch.Tensor] = MappingProxyType(graph.constants)

    def __call__(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute the outputs."""
        values = self._graph.run(arguments)
        return tuple(self._graph.operand(n, v) for n, v in zip(self.outputs, values, strict=True))


def translate(model: ModelProto, folder: Path | None = None, *, device: str = "cpu") -> Translation:
    """Translate a model, which is not changed; `folder` is that of its external data.

    Raises UnsupportedModelError, which names every operator that is not translated.
    """
    model = deepcopy(model)
    shorten_domains(model)
    model = _with_functions_written_out(inline_functions(at_readable_opset(model, "the model")))
    write_out_sparse(model.graph)
    for graph in graphs_of(model.graph):
        name_nodes(graph)
    sort_nodes(model.graph)
    raised(model.graph)
    _refuse_unknown(model)
    _refuse_types(model)
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    return Translation(Graph(model.graph, Origin(opsets=opsets, folder=folder, device=torch.device(device))))


def _with_functions_written_out(model: ModelProto) -> ModelProto:
    """Write out operators without a row that ONNX defines by others.

    Where ONNX's inliner cannot tell the types that such a definition depends on, the operator stays.
    """
    unknown = _unknown(model)
    if not unknown:
        return model
    for node in with_bodies(model.graph.node):
        if OpKey.of(node) in unknown:
            _write_defaults(node, model)
    try:
        return onnx.inliner.inline_selected_functions(model, [*unknown], inline_schema_functions=True)
    except RuntimeError:
        return model


def _write_defaults(node: NodeProto, model: ModelProto) -> None:
    """Write the attributes of a node that have defaults: the inliner leaves them out."""
    versions = {opset.domain: opset.version for opset in model.opset_import}
    if not onnx.defs.has(node.op_type, node.domain):
        return
    schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
    written = {attribute.name for attribute in node.attribute}
    node.attribute.extend(
        a.default_value
        for name, a in schema.attributes.items()
        if a.default_value.name and name not in written
    )


def _unknown(model: ModelProto) -> dict[OpKey, str]:
    """List the operators without a row, with the name of a node each."""
    unknown: dict[OpKey, str] = {}
    for node in with_bodies(model.graph.node):
        op = OpKey.of(node)
        if op not in TABLE and op != CONSTANT:
            unknown.setdefault(op, node.name)
    return unknown


def _refuse_unknown(model: ModelProto) -> None:
    unknown = _unknown(model)
    if unknown:
        told = "; ".join(f"{op.label} (node {unknown[op]!r})" for op in sorted(unknown))
        raise UnsupportedModelError(
            f"torch does not run {len(unknown)} operator{'s' * (len(unknown) > 1)} of the graph",
            why=f"not translated: {told}",
            remedy="Run the graph on ONNX Runtime (--runtime onnxruntime).",
        )


def _refuse_types(model: ModelProto) -> None:
    """Refuse inputs of types that torch has no tensors of, or none that compute."""
    for value in model.graph.input:
        kind = value.type
        while (which := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
            kind = getattr(kind, which).elem_type
        if kind.tensor_type.elem_type != TensorProto.UNDEFINED:
            dtype_of(kind.tensor_type.elem_type, f"the input {value.name!r}")
