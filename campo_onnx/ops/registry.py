"""All operators that are known, each once."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType

from campo_onnx.ops import aten, microsoft, standard
from campo_onnx.ops.key import ATEN, OpKey
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.spec import Family, OpSpec
from campo_onnx.ops.values.registry import RULES
from campo_onnx.ops.values.rule import Rule

_ATEN = OpKey(ATEN, "ATen")


class Registry:
    """Operators by key.

    Parameters
    ----------
    specs
        What is known of each.

    Raises
    ------
    ValueError
        If an operator is registered twice.
    """

    def __init__(self, specs: Iterable[OpSpec]) -> None:
        found: dict[OpKey, OpSpec] = {}
        for spec in specs:
            if spec.key in found:
                raise ValueError(f"the operator {spec.key.label} is registered twice")
            found[spec.key] = spec
        self.specs: Mapping[OpKey, OpSpec] = MappingProxyType(found)

    def spec(self, op: OpKey) -> OpSpec:
        """What is known of an operator; of one that is not registered, that nothing is."""
        return self.specs.get(op) or OpSpec(key=op, family=Family.OTHER, is_known=False)

    def spec_of(self, signature: Signature) -> OpSpec:
        """What is known of a node's operator; PyTorch's are told apart by an attribute."""
        if signature.op == _ATEN:
            operator = str(signature.attribute("operator", "")).removeprefix("aten::")
            if (found := self.specs.get(OpKey(ATEN, operator))) is not None:
                return found
        return self.spec(signature.op)

    def of_family(self, *families: Family) -> frozenset[OpKey]:
        """The operators of some families."""
        return frozenset(key for key, spec in self.specs.items() if spec.family in families)


def _with_values(specs: Iterable[OpSpec], rules: Mapping[OpKey, Rule]) -> Iterator[OpSpec]:
    left = dict(rules)
    for spec in specs:
        yield replace(spec, values=left.pop(spec.key, spec.values))
    if left:
        raise ValueError(f"there are value rules of unknown operators: {', '.join(k.label for k in left)}")


REGISTRY = Registry(_with_values((*standard.SPECS, *microsoft.SPECS, *aten.SPECS), RULES))
"""The operators that come with the package."""

_current: ContextVar[Registry] = ContextVar("registry", default=REGISTRY)


def current() -> Registry:
    """The registry in force."""
    return _current.get()


def spec(op: OpKey) -> OpSpec:
    """What is known of an operator; of one that is not registered, that nothing is.

    Examples
    --------
    >>> spec(OpKey("", "Conv")).family
    <Family.CONVOLUTION: 'convolutions'>
    >>> spec(OpKey("my.domain", "Fancy")).is_known
    False
    """
    return current().spec(op)


@contextmanager
def also(*specs: OpSpec) -> Iterator[Registry]:
    """Have more operators for the length of a block."""
    token = _current.set(Registry((*current().specs.values(), *specs)))
    try:
        yield current()
    finally:
        _current.reset(token)
