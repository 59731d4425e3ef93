"""From a file or ModelProto to a normalized model and its view.

Normalized means: local functions inlined, every node named uniquely, nodes in topological order.
Nothing else changes, so the model can be written back as the user knows it.
"""

import hashlib
import stat
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto, TensorShapeProto

from campo_onnx.errors import CampoError, ModelError, UnsupportedModelError, UsageError
from campo_onnx.files import reading
from campo_onnx.ir import shapes
from campo_onnx.ir.check import check_given, refuse_broken_text
from campo_onnx.ir.constants import (
    chunks,
    constants_of,
    data_files,
    defaults_of,
    is_external,
    read_small,
    tensors_of,
    write_out_sparse,
)
from campo_onnx.ir.domains import shorten_domains
from campo_onnx.ir.inline import inline_functions
from campo_onnx.ir.limits import MODEL_LIMIT_BYTES, refuse_beyond_limits, refuse_malformed
from campo_onnx.ir.opsets import at_readable_opset, version_of
from campo_onnx.ir.origin import Origin, origin_of
from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.size_ranges import with_examples
from campo_onnx.ir.sort import name_nodes, outer_reads, sort_nodes
from campo_onnx.ir.stamp import Stamp, read_stamp
from campo_onnx.ir.view import FLOAT, GraphView, OpNode, TensorInfo, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import is_low_dtype


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A model ready to be planned and rewritten."""

    model: onnx.ModelProto  # the normalized model; external data is not loaded
    view: GraphView
    # Initializers and outputs of Constant nodes by name; their bytes may lie outside. Those that are graph
    # inputs as well are not constant and not among them.
    constants: Mapping[str, TensorProto] = field(default_factory=dict)
    folder: Path | None = None  # where external data lies; None for a model that was passed in memory
    # Files beside the given model that hold its tensors: nothing may be written over them.
    data_files: frozenset[Path] = frozenset()
    stamp: Stamp | None = None  # what an earlier run of campo-onnx wrote into this very graph, or None
    # The version of the standard operators that the given model used, where it was too old to be planned as
    # it is and was converted; None where it was not.
    converted_from: int | None = None
    # The graph before it was lowered for a target; None where it was not.
    given: "Imported | None" = None
    passes: tuple[str, ...] = ()
    # The graph before what it computes in low precision was raised; None where nothing was.
    as_given: "Imported | None" = None
    # Nodes that compute in low precision in that graph, of the format to plan in.
    low_as_given: frozenset[str] = frozenset()

    def refuse_result(self) -> None:
        """Refuse a graph that is a result of campo-onnx already: there is nothing to decide."""
        if self.stamp is not None:
            raise UsageError(
                "the model is a result of campo-onnx already",
                why="its precisions are decided",
                remedy="Give the FP32 file it was made from.",
            )

    @cached_property
    def defaults(self) -> Mapping[str, NDArray[Any]]:
        """Values of the inputs that need not be given: those that are initializers as well."""
        return defaults_of(self.model, self.folder)

    @cached_property
    def digest(self) -> str:
        """Fingerprint of the whole graph: what its view holds, bodies of nodes, and every constant.

        Constants count by their bytes, all of them, wherever they lie: what a plan casts in the file
        was looked at value by value. External data is read in pieces, about a second a gigabyte.
        """
        digest = hashlib.blake2b(self.view.digest.encode(), digest_size=16)
        for name in sorted(self.constants):
            tensor = self.constants[name]
            digest.update(f"\n{name}:{tensor.data_type}:{list(tensor.dims)}\n".encode())
            if tensor.HasField("raw_data"):
                digest.update(tensor.raw_data)
            elif tensor.data_type == TensorProto.STRING:
                digest.update(tensor.SerializeToString(deterministic=True))
            else:
                for chunk in chunks(tensor, self.folder):
                    digest.update(chunk.tobytes())
        for node in self.model.graph.node:
            for attribute in node.attribute:
                if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                    digest.update(attribute.SerializeToString(deterministic=True))
        return digest.hexdigest()


def import_model(
    source: str | Path | onnx.ModelProto,
    dims: Mapping[str, int] | None = None,
    *,
    any_type: bool = False,
    folder: Path | None = None,
) -> Imported:
    """Read a training graph.

    `source`: path of an ONNX file, or a model in memory (which is copied, never changed).
    `dims`: sizes of symbolic dimensions, as ``{"batch": 64}``; by default those that the model was exported
    at, where it says so.
    `any_type`: whether a graph without floating-point tensors is read as well, though there is nothing to
    plan.
    `folder`: where the external data of a model in memory lies; that of a file lies beside it.

    Raises UsageError if the file does not exist, or a dimension is unbound or unknown; ModelError if the file
    is not a valid ONNX model; UnsupportedModelError if the opset is too new, or too old and not to be
    converted, or there is nothing to plan.
    """
    if isinstance(source, onnx.ModelProto):
        model = deepcopy(source)
        title = "the model"
    else:
        path = Path(source)
        model, folder = _load(path), path.resolve().parent
        title = str(path)
    refuse_broken_text(model, title)
    refuse_beyond_limits(model, title)
    shorten_domains(model)
    refuse_malformed(model, title)
    read = data_files(model, folder)
    if folder is not None:
        read_small(tensors_of(model.graph), folder)
    given_opset = version_of(model)
    model = at_readable_opset(model, title)
    stamp = read_stamp(model)
    model = inline_functions(model)
    write_out_sparse(model.graph)
    name_nodes(model.graph)
    sort_nodes(model.graph)
    _check_and_declare(model, title, dims or {})
    # An initializer that is an input as well is a default, which the caller may override.
    inputs = {value.name for value in model.graph.input}
    constants = {name: t for name, t in constants_of(model.graph).items() if name not in inputs}
    view = view_of(model, shapes.infer(model, with_examples(model, dims or {})))
    # A graph of ours, planned already, may have none left: a Cast from integers makes the low type at once.
    all_read = any_type or stamp is not None
    computes = any(info.dtype == FLOAT or is_low_dtype(info.dtype) for info in view.tensors.values())
    if not all_read and not computes:
        raise UnsupportedModelError(
            f"{title} has no tensor in FP32, FP16 or BF16",
            why="there is nothing to plan",
            remedy="Export the training step in FP32 and optimize that file.",
        )
    return Imported(
        model=model,
        view=view,
        constants=constants,
        folder=folder,
        data_files=read,
        stamp=stamp,
        converted_from=None if given_opset in (None, view.opset[""]) else given_opset,
    )


def _check_and_declare(model: onnx.ModelProto, title: str, dims: Mapping[str, int]) -> None:
    """Check a model, and give outputs that are declared without a shape the number of axes that they have.

    ONNX's checker refuses a graph with such an output, which exporters write and ONNX Runtime runs.
    """
    for value in filter(_lacks_shape, model.graph.input):
        raise ModelError(
            f"the input {value.name!r} of {title} has no shape",
            why="not even its number of axes is declared",
            remedy="Export the model again; sizes may have names.",
        )
    outputs = list(model.graph.output)
    replace_items(model.graph.output, [value for value in outputs if not _lacks_shape(value)])
    check_given(model, title)
    if len(model.graph.output) == len(outputs):
        return
    inferred = shapes.infer(model, with_examples(model, dims)).shapes
    for value in filter(_lacks_shape, outputs):
        shape = inferred.get(value.name)
        if shape is None:
            raise ModelError(
                f"the output {value.name!r} of {title} has no shape",
                why="none is declared, and none can be inferred",
                remedy="Declare its shape; sizes may have names.",
            )
        declared = value.type.tensor_type.shape
        declared.SetInParent()
        declared.dim.extend(TensorShapeProto.Dimension() for _ in shape)
    replace_items(model.graph.output, outputs)


def _lacks_shape(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def data_files_of(path: Path) -> frozenset[Path]:
    """Files beside a model that hold its tensors; none for a file that is not a model."""
    try:
        return data_files(_load(path), path.resolve().parent)
    except CampoError:
        return frozenset()


def _load(path: Path) -> onnx.ModelProto:
    payload = _payload(path)
    if not payload:
        raise ModelError(f"{path} is empty", remedy="Export the model again.")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(payload)
    except DecodeError:
        raise ModelError(
            f"{path} is not an ONNX model",
            why="it does not parse; it is truncated or of another format",
            remedy="Export or copy the model again.",
        ) from None
    has_graph = model.graph.node or model.graph.output
    if not model.ir_version or not has_graph:
        raise ModelError(
            f"{path} is not an ONNX model",
            why="it holds no graph" if model.ir_version else "it has no IR version",
            remedy="Export or copy the model again.",
        )
    return model


def check_model(path: Path) -> None:
    """Find out before any work whether there is a file that may be a model."""
    _payload(path, read=False)


def _payload(path: Path, *, read: bool = True) -> bytes:
    with reading(f"{path}", "Check the path of the model."):
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise UsageError(f"{path} is a folder", remedy="Name the .onnx file in it.")
        if not stat.S_ISREG(status.st_mode):  # a pipe may wait and a device may give for ever
            raise UsageError(f"{path} is not a regular file", remedy="Copy the model to a file.")
        if status.st_size > MODEL_LIMIT_BYTES:
            raise ModelError(
                f"{path} is not an ONNX model",
                why=f"it has {status.st_size:,} bytes, and protobuf ends at 2 GiB",
                remedy="Check that it is the file you mean; large weights go beside the model.",
            )
        return path.read_bytes() if read else b""


def view_of(model: onnx.ModelProto, types: shapes.TensorTypes) -> GraphView:
    """View a model with named nodes in order."""
    graph = model.graph
    outputs = tuple(value.name for value in graph.output)
    inputs = tuple(value.name for value in graph.input)
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {n.output[0] for n in graph.node if n.op_type == "Constant" and not n.domain}
    is_output = frozenset(outputs)

    def kind(name: str) -> TensorKind:
        if name in is_input:
            return TensorKind.INPUT
        return TensorKind.CONSTANT if name in constants else TensorKind.ACTIVATION

    is_input = frozenset(inputs)
    shared = _Shared(types.dtypes)
    return GraphView(
        nodes=tuple(_node_of(node, shared) for node in graph.node),
        tensors={
            name: TensorInfo(
                name=name,
                dtype=dtype,
                shape=types.shapes.get(name),
                kind=kind(name),
                is_output=name in is_output,
            )
            for name, dtype in types.dtypes.items()
        },
        inputs=inputs,
        outputs=outputs,
        opset={opset.domain: opset.version for opset in model.opset_import},
        values=types.values,
    )


class _Shared:
    """Names, operators and attributes that are one object wherever they occur: protobuf makes each anew."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name: name for name in names}
        self._ops: dict[OpKey, OpKey] = {}
        self._attributes: dict[tuple[bytes, ...], Mapping[str, Any]] = {}
        self._origins: dict[Origin, Origin] = {}

    def named(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(self._names.setdefault(name, name) for name in names)

    def op(self, node: onnx.NodeProto) -> OpKey:
        key = OpKey.of(node)
        return self._ops.setdefault(key, key)

    def origin(self, node: onnx.NodeProto) -> Origin:
        origin = origin_of(node)
        return self._origins.setdefault(origin, origin)

    def attributes(self, node: onnx.NodeProto) -> Mapping[str, Any]:
        held = [a for a in node.attribute if _has_value_here(a)]
        if any(a.HasField("t") for a in held):  # a tensor may be large
            return _attributes(held)
        key = tuple(a.SerializeToString() for a in held)
        if key not in self._attributes:
            self._attributes[key] = _attributes(held)
        return self._attributes[key]


def _attributes(held: Iterable[onnx.AttributeProto]) -> Mapping[str, Any]:
    return MappingProxyType({attribute.name: _attribute_value(attribute) for attribute in held})


def _node_of(node: onnx.NodeProto, shared: _Shared) -> OpNode:
    return OpNode(
        name=node.name,
        op=shared.op(node),
        inputs=shared.named(node.input),
        outputs=shared.named(node.output),
        captures=outer_reads(node),
        attributes=shared.attributes(node),
        origin=shared.origin(node),
    )


def _has_value_here(attribute: onnx.AttributeProto) -> bool:
    is_graph = attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    return not is_graph and not is_external(attribute.t)


def _attribute_value(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value
