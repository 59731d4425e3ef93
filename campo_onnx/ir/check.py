"""ONNX's own checker, given what it can take: no large tensors, no operators it cannot know."""

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

from campo_onnx.errors import ModelError
from campo_onnx.ir.constants import is_external
from campo_onnx.ir.proto import without_graph
from campo_onnx.ir.sort import bodies, with_bodies
from campo_onnx.ops.attributes import attribute_type, least_inputs
from campo_onnx.ops.key import MICROSOFT, OpKey
from campo_onnx.ops.registry import spec
from campo_onnx.ops.schema import schema_of

_FAULT = re.compile(r"\[(?:Type|Shape)InferenceError\] ([^\[]*)")
_MISSING_TYPE = re.compile(
    r"Input \d+ expected to have type but instead is null|Mismatched type: .*declared=0"
)
_MESSAGE, _TEXT = FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING
_LARGE_BYTES = 1024  # smaller ones stay: their values may be shapes that inference needs


def refuse_broken_text(model: ModelProto, title: str) -> None:
    """Make sure that names are text: protobuf hands out bytes where a file holds no UTF-8."""
    broken = next(_texts_as_bytes(model), None)
    if broken is not None:
        raise ModelError(
            f"{title} is not a valid ONNX model",
            why=f"{broken[:40]!r} is not UTF-8; the file is damaged",
            remedy="Export or copy the model again.",
        )


def _texts_as_bytes(model: ModelProto) -> Iterator[bytes]:
    pending: list[Message] = [model]
    while pending:
        for field, value in pending.pop().ListFields():
            kind = field.type
            if kind == _MESSAGE:
                pending += value if field.is_repeated else (value,)
            elif kind == _TEXT:
                texts = value if field.is_repeated else (value,)
                yield from (text for text in texts if isinstance(text, bytes))


def check_given(model: ModelProto, title: str) -> None:
    """Check a model that came from outside, apart from the bytes of large tensors."""
    try:
        _check_in_full(_with_known_operators(_without_large_tensors(model)))
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise _invalid(title, _one_line(error)) from error
    _refuse_wrong_nodes(model, title)


def _check_in_full(model: ModelProto | str) -> None:
    """Check a model with inference, which fails in a body whose tensors nothing tells it the type of.

    A missing type is no contradiction: such a model is checked without inference.
    """
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        faults = [text for text in _FAULT.findall(str(error)) if not text.startswith("Inference error")]
        if not faults or not all(map(_MISSING_TYPE.match, faults)):
            raise
        onnx.checker.check_model(model)


def _refuse_wrong_nodes(model: ModelProto, title: str) -> None:
    """Refuse wrong attributes and missing inputs of operators that the checker knows nothing about."""
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    for node in with_bodies(model.graph.node):
        op = OpKey.of(node)
        least = least_inputs(op)
        if len(node.input) < least or not all(node.input[:least]):
            raise _invalid(
                title, f"node {node.name!r} ({op.label}) lacks an input of the {least} that it needs"
            )
        for attribute in node.attribute:
            wanted = attribute_type(op, opsets.get(node.domain, 1), attribute.name)
            if wanted not in (None, attribute.type):
                wrong, right = (AttributeProto.AttributeType.Name(t) for t in (attribute.type, wanted))
                where = f"attribute {attribute.name!r} of node {node.name!r} ({op.label})"
                raise _invalid(title, f"{where} is of type {wrong}, and must be {right}")


def _invalid(title: str, why: str) -> ModelError:
    return ModelError(f"{title} is not a valid ONNX model", why=why, remedy="Export the model again.")


def check_written(model: ModelProto, path: Path) -> None:
    """Check a model of ours as it was written to `path`, its external data beside it."""
    disguised = _with_known_operators(model)
    if disguised is model:
        _check_in_full(str(path))
        return
    copy = path.with_name(".checked")
    copy.write_bytes(disguised.SerializeToString())
    _check_in_full(str(copy))
    copy.unlink()


def _with_known_operators(model: ModelProto) -> ModelProto:
    """Disguise standard operators that ONNX Runtime has and the model's opset has not.

    The checker refuses those (MaxPoolGrad in any graph, LayerNormalization before opset 17); under a
    foreign domain it asks of them no more than of any custom operator. Neither is an EyeLike shown
    to it that would crash it.
    """
    opset = next((o.version for o in model.opset_import if not o.domain), 1)
    has_unknown_types = any(
        node.domain or is_of_runtime(node, opset) for node in with_bodies(model.graph.node)
    )

    def is_hidden(node: NodeProto) -> bool:
        return is_of_runtime(node, opset) or (has_unknown_types and is_unsafe_to_infer(node))

    if not any(map(is_hidden, with_bodies(model.graph.node))):
        return model
    disguised = deepcopy(model)
    for node in filter(is_hidden, with_bodies(disguised.graph.node)):
        node.domain = MICROSOFT
    if all(imported.domain != MICROSOFT for imported in model.opset_import):
        disguised.opset_import.add(domain=MICROSOFT, version=1)
    return disguised


def is_of_runtime(node: NodeProto, opset: int) -> bool:
    """Whether ONNX Runtime has the standard operator of a node in an opset where ONNX has none."""
    if node.domain or not spec(OpKey("", node.op_type)).standard_in_runtime:
        return False
    return schema_of(OpKey("", node.op_type), opset) is None


def is_unsafe_to_infer(node: NodeProto) -> bool:
    """Whether ONNX's inference ends the process when it does not know the type of what the node reads."""
    return not node.domain and node.op_type in ("EyeLike", "RegexFullMatch")


def hide_in_bodies(node: NodeProto, domain: str) -> None:
    """Move what ONNX's inference may not see of a node's bodies to a foreign domain, in place."""
    for body in bodies(node):
        for inner in filter(is_unsafe_to_infer, with_bodies(body.node)):
            inner.domain = domain


def _without_large_tensors(model: ModelProto) -> ModelProto:
    """Copy a model with large and external tensors declared as inputs, which have no bytes."""
    slim = without_graph(model)
    declared = {value.name for value in model.graph.input}
    _copy_without_large_tensors(model.graph, slim.graph, slim.graph, declared)
    return slim


def _copy_without_large_tensors(
    graph: onnx.GraphProto, copy: onnx.GraphProto, main: onnx.GraphProto, declared: set[str]
) -> None:
    copy.name = graph.name
    for field in ("input", "output", "value_info"):
        getattr(copy, field).extend(getattr(graph, field))
    for tensor in graph.initializer:
        if _is_large(tensor):
            _declare(tensor.name, tensor, main, declared)
        else:
            copy.initializer.append(tensor)
    for node in graph.node:
        large = next(filter(_is_large, _values(node)), None)
        if large is not None:
            _declare(node.output[0], large, main, declared)
            continue
        copied = copy.node.add()
        copied.CopyFrom(node)
        for body, into in zip(bodies(node), bodies(copied), strict=True):
            into.Clear()
            _copy_without_large_tensors(body, into, main, declared)


def _values(node: NodeProto) -> Iterator[TensorProto]:
    if node.op_type == "Constant" and node.output:
        yield from (attribute.t for attribute in node.attribute if attribute.name == "value")


def _is_large(tensor: TensorProto) -> bool:
    return is_external(tensor) or tensor.ByteSize() > _LARGE_BYTES


def _declare(name: str, tensor: TensorProto, main: onnx.GraphProto, declared: set[str]) -> None:
    # Bodies see the tensors around them, so that one place serves all.
    if name not in declared:
        declared.add(name)
        main.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).replace("==> Context:", " ").split()).rstrip(".")
