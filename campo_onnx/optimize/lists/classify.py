"""The class of every node: what the lists say of its operator, and what pattern rules say of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from campo_onnx.ir.view import GraphView, Use
from campo_onnx.optimize.lists.oplists import OpClass, OpLists
from campo_onnx.optimize.lists.patterns import PATTERN_RULES

# Of two pattern rules that disagree about a node the more careful one is right, whatever their order.
_CARE = {OpClass.ALLOW: 0, OpClass.CLEAR: 1, OpClass.INFER: 2, OpClass.DENY: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClass:
    """Class of one node and, where a pattern rule decided, what it found."""

    op_class: OpClass
    finding: StrEnum | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """Classes of all nodes."""

    classes: Mapping[str, NodeClass]
    contained: frozenset[Use]  # readings through which a deny node's unsafety does not spread
    # Whether comparison results, masks and indices carry unsafety, as they do in TensorFlow.
    taint_through_decisions: bool
    # Nodes that data shows to be harmless in low precision, whatever lies upstream.
    released: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", MappingProxyType(dict(self.classes)))


def classify(view: GraphView, lists: OpLists, update: frozenset[str]) -> Classification:
    """Classify every node of a graph.

    `update`: nodes of the weight update (:func:`campo_onnx.optimize.updates.weight_update`).
    """
    by_op = {op: NodeClass(op_class=lists.class_of(op)) for op in {node.op for node in view.nodes}}
    classes = {node.name: by_op[node.op] for node in view.nodes}
    contained: frozenset[Use] = frozenset()
    from_patterns: dict[str, NodeClass] = {}
    for name in lists.patterns:
        findings = PATTERN_RULES[name](view, update)
        contained |= findings.contained
        for node, (op_class, finding) in findings.classes.items():
            earlier = from_patterns.get(node)
            if earlier is None or _CARE[op_class] > _CARE[earlier.op_class]:
                from_patterns[node] = NodeClass(op_class=op_class, finding=finding)
    return Classification(
        classes=classes | from_patterns,
        contained=contained,
        taint_through_decisions=lists.taint_through_decisions,
    )
