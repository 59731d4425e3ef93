"""Operator sets: which versions are read as they are, which are converted first, which are refused."""

import onnx
import onnx.version_converter
from onnx import ModelProto, NodeProto
from onnx.shape_inference import InferenceError

from campo_onnx.errors import ModelError, UnsupportedModelError
from campo_onnx.ir.check import check_given
from campo_onnx.ir.constants import is_external
from campo_onnx.ir.sort import sort_nodes

OLDEST_NATIVE_OPSET = 7
"""The oldest version of the standard domain that is read, planned and written as it is."""

CONVERTED_TO_OPSET = 13
"""The opset that older models get: the first version with BF16, which newer runtimes all read."""

ADDED_OPSET = 20
"""The opset of Casts in a model that imports other domains only, where its IR version allows it."""

_FREE_INITIALIZERS_IR = 4
"""From here on an initializer, a low version of a constant say, need not be an input of the graph."""


def version_of(model: ModelProto) -> int | None:
    """Version of the standard domain that a model imports, or None when it does not."""
    return next((opset.version for opset in model.opset_import if not opset.domain), None)


def at_readable_opset(model: ModelProto, title: str) -> ModelProto:
    """Bring a model to a version of the standard operators that is read here.

    `model`: the model, whose domains are spelled the short way. One that imports other domains only gets an
    import of the standard domain, in place: Cast is an operator of it.
    """
    version = version_of(model)
    if version is None:
        if any(not node.domain for node in model.graph.node):
            raise ModelError(
                f"{title} imports no opset of the standard domain", remedy="Export the model again."
            )
        model.opset_import.add(domain="", version=min(ADDED_OPSET, _newest_at_ir(model.ir_version)))
        version = version_of(model) or 1
    newest = onnx.defs.onnx_opset_version()
    if version > newest:
        raise UnsupportedModelError(
            f"{title} uses opset {version}",
            why=f"the installed onnx {onnx.__version__} knows opsets up to {newest}",
            remedy="Install a newer onnx, or export at opset 20.",
        )
    readable = model if version >= OLDEST_NATIVE_OPSET else _converted(model, version, title)
    readable.ir_version = max(readable.ir_version, _FREE_INITIALIZERS_IR)
    return readable


def _newest_at_ir(ir_version: int) -> int:
    versions = [row[2] for row in onnx.helper.VERSION_TABLE if row[1] <= ir_version]
    return max(versions, default=1)


def _converted(model: ModelProto, version: int, title: str) -> ModelProto:
    # The converter trusts what it is given.
    sort_nodes(model.graph)
    check_given(model, title)
    if any(map(is_external, model.graph.initializer)):
        raise _not_convertible(
            title, version, "its weights lie outside the file, where the converter is blind"
        )
    changed = next((node.op_type for node in model.graph.node if _changed_meaning(node)), None)
    if changed is not None:
        raise _not_convertible(title, version, f"the operator {changed} changed its meaning since then")
    try:
        converted: ModelProto = onnx.version_converter.convert_version(model, CONVERTED_TO_OPSET)
    except (RuntimeError, onnx.version_converter.ConvertError, InferenceError) as error:
        raise _not_convertible(title, version, _blamed(model, str(error))) from error
    for field in ("input", "output"):
        if list(getattr(model.graph, field)) != list(getattr(converted.graph, field)):
            raise _not_convertible(title, version, f"the conversion changes its {field}s")
    return converted


def _changed_meaning(node: NodeProto) -> bool:
    """Whether the converter takes a node over as it is although it would compute something else.

    Since opset 7, PRelu broadcasts from the right, and Dropout and BatchNormalization do not train.
    """
    if node.op_type in ("BatchNormalization", "Dropout"):
        return all(attribute.name != "is_test" or not attribute.i for attribute in node.attribute)
    return node.op_type == "PRelu"


def _blamed(model: ModelProto, message: str) -> str:
    """Name the operator that the converter does not know, which its message runs together with figures."""
    op_types = sorted({node.op_type for node in model.graph.node}, key=len, reverse=True)
    blamed = next((op_type for op_type in op_types if op_type in message), None)
    return f"the operator {blamed} cannot be converted" if blamed else " ".join(message.split())


def _not_convertible(title: str, version: int, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{title} uses opset {version}, which onnx cannot convert to opset {CONVERTED_TO_OPSET}",
        why=why,
        remedy="Export at opset 20.",
    )
