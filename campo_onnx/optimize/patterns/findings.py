"""What a pattern rule finds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from campo_onnx.ir.view import Use
from campo_onnx.optimize.op_class import OpClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Classes a rule gives to nodes, and readings that carry no unsafety.

    Parameters
    ----------
    classes
        New class and the reason, by node name.
    contained
        Readings through which a deny node's unsafety does not spread.
    """

    classes: Mapping[str, tuple[OpClass, str]] = field(default_factory=dict)
    contained: frozenset[Use] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", MappingProxyType(dict(self.classes)))
