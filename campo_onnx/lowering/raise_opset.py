"""Raise the standard operators to a newer version where none of them changes its meaning.

Conv, ConvTranspose and pooling take BF16 only from opset 22 on, so that a BF16 plan of an older graph would
leave every convolution in FP32::

    <opset_import: ["" : 20]> g (float[1, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[1, 4, 6, 6] y)
    { y = Conv (x, w) }

becomes::

    <opset_import: ["" : 22]> g (float[1, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[1, 4, 6, 6] y)
    { y = Conv (x, w) }

An operator keeps its meaning where its newer schema differs by admitted types alone. Everything else stops
the pass: other attributes, defaults, inputs or outputs, and another description, unless it is one of
:data:`REWORDED`.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import onnx
from onnx import NodeProto, defs, helper

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.sort import with_bodies
from campo_onnx.lowering.place import CONVOLUTIONS_IN_BF16, Place
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.schema import schema_of
from campo_onnx.ops.signature import Signature, TensorType, make_signature

_IR_VERSION = 10
"""Of opset 21 and 22."""


def _reaches_beyond(node: NodeProto) -> bool:
    """Whether a window may begin in the padding at the end, which the newer text leaves out."""
    return any(attribute.name == "ceil_mode" and attribute.i for attribute in node.attribute)


REWORDED: Mapping[str, Callable[[NodeProto], bool]] = {
    "AveragePool": _reaches_beyond,
    "MaxPool": _reaches_beyond,
}
"""Operators of which a newer schema says more, and the nodes that this concerns."""


def raise_opset(imported: Imported, place: Place, *, opset: int = CONVOLUTIONS_IN_BF16) -> onnx.ModelProto:
    """Raise a graph to an opset.

    Every operator that runs at the place as it is must run there in its newer version. UnsupportedModelError
    says that an operator would change its meaning, or would have no kernel.
    """
    version = imported.view.opset[""]
    if version >= opset:
        return imported.model
    for node in with_bodies(imported.model.graph.node):
        if node.domain:
            continue
        signature = _bare(node, version)
        if not keeps_meaning(node, version, opset):
            raise _not_raised(f"{node.op_type} changed its meaning between opset {version} and {opset}")
        if place.runs(signature, version) and not place.runs(signature, opset):
            raise _not_raised(f"{place.target.runtime.name} has no kernel of {node.op_type} at opset {opset}")
    model = deepcopy(imported.model)
    next(entry for entry in model.opset_import if not entry.domain).version = opset
    model.ir_version = max(model.ir_version, _IR_VERSION)
    return model


def lower_opset(model: onnx.ModelProto, place: Place) -> None:
    """Let a graph import an older opset, in place, where the target lacks kernels of the newer one.

    A graph that was raised for another target's sake comes back by it. Nothing changes where an operator
    means something else in the older opset.
    """
    entry = next(each for each in model.opset_import if not each.domain)
    older = CONVOLUTIONS_IN_BF16 - 1
    nodes = [node for node in with_bodies(model.graph.node) if not node.domain]
    lacks = any(not place.runs(_bare(node, entry.version), entry.version) for node in nodes)
    if lacks and entry.version > older and all(keeps_meaning(n, older, entry.version) for n in nodes):
        entry.version = older


def keeps_meaning(node: NodeProto, version: int, newer: int) -> bool:
    """Whether a node of the standard domain computes the same in a newer opset."""
    op = OpKey("", node.op_type)
    old, new = schema_of(op, version), schema_of(op, newer)
    if old is None or new is None:
        return old is new  # the runtime's own, at any opset
    if old.since_version == new.since_version:
        return True
    is_same = _attributes(old) == _attributes(new) and _ports(old) == _ports(new) and not new.deprecated
    is_concerned = REWORDED.get(node.op_type)
    is_described_alike = old.doc == new.doc or (is_concerned is not None and not is_concerned(node))
    return is_same and is_described_alike and _admits(old, new)


def _bare(node: NodeProto, opset: int) -> Signature:
    """Describe a node by its operator and attributes alone, wherever in the model it stands."""
    attributes = {
        a.name: helper.get_attribute_value(a) for a in node.attribute if a.type in (a.INT, a.FLOAT)
    } | {a.name: a.s.decode() for a in node.attribute if a.type == a.STRING}
    inputs = [TensorType(onnx.TensorProto.UNDEFINED, None) if name else None for name in node.input]
    return make_signature(OpKey("", node.op_type), inputs, (), attributes=attributes, opset=opset)


def _attributes(schema: defs.OpSchema) -> dict[str, Any]:
    return {
        name: (attribute.type, attribute.required, attribute.default_value.SerializeToString())
        for name, attribute in schema.attributes.items()
    }


def _ports(schema: defs.OpSchema) -> list[tuple[Any, ...]]:
    formals = (*schema.inputs, *schema.outputs)
    return [(formal.name, formal.option, formal.type_str) for formal in formals]


def _admits(old: defs.OpSchema, new: defs.OpSchema) -> bool:
    types = {c.type_param_str: {*c.allowed_type_strs} for c in new.type_constraints}
    return all({*c.allowed_type_strs} <= types.get(c.type_param_str, set()) for c in old.type_constraints)


def _not_raised(why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        "the graph stays at its opset, where convolutions have no BF16", why=why,
        remedy="Plan in FP16, or export the graph at opset 22.",
    )  # fmt: skip
