"""All operators that are known, each once."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType

from campo_onnx.ops import aten, microsoft, standard
from campo_onnx.ops.key import ATEN, OpKey
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.spec import Ask, Family, Movement, OpSpec
from campo_onnx.ops.values.asks import ASKS
from campo_onnx.ops.values.passes import PASSES
from campo_onnx.ops.values.registry import AT_MOST_ONE, BOUNDED, RULES
from campo_onnx.ops.values.rule import Rule
from campo_onnx.ops.values.traits import TRAITS, Trait

_ATEN = OpKey(ATEN, "ATen")
_MOVES = frozenset({Movement.VIEW, Movement.REORDER, Movement.REPEAT})


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

    def having(self, *traits: Trait) -> frozenset[OpKey]:
        """The operators that have one of some traits."""
        return frozenset(key for key, spec in self.specs.items() if not spec.traits.isdisjoint(traits))

    def asking(self, what: Ask) -> Mapping[OpKey, tuple[int, ...]]:
        """The operators that ask something of inputs, and the positions of these."""
        found = {key: tuple(i for i, ask in spec.asks if ask is what) for key, spec in self.specs.items()}
        return MappingProxyType({key: positions for key, positions in found.items() if positions})

    def of_family(self, *families: Family) -> frozenset[OpKey]:
        """The operators of some families."""
        return frozenset(key for key, spec in self.specs.items() if spec.family in families)


def _with_values(
    specs: Iterable[OpSpec], rules: Mapping[OpKey, Rule], traits: Mapping[OpKey, frozenset[Trait]]
) -> Iterator[OpSpec]:
    known: set[OpKey] = set()
    for spec in specs:
        known.add(spec.key)
        values = rules.get(spec.key, spec.values)
        more = traits.get(spec.key, frozenset())
        yield replace(
            spec,
            values=values,
            traits=more | {*_implied(spec.movement, values)},
            asks_accuracy=ASKS.get(spec.key, spec.asks_accuracy),
            passes_accuracy=PASSES.get(spec.key, spec.passes_accuracy),
        )
    if left := (rules.keys() | traits.keys() | ASKS.keys() | PASSES.keys()) - known:
        names = ", ".join(sorted(key.label for key in left))
        raise ValueError(f"there are rules or traits of unknown operators: {names}")


def _implied(movement: Movement | None, values: Rule | None) -> Iterator[Trait]:
    if movement in _MOVES:
        yield Trait.MOVES
    if values in AT_MOST_ONE:
        yield Trait.AT_MOST_ONE
    if values in BOUNDED:
        yield Trait.BOUNDED


REGISTRY = Registry(_with_values((*standard.SPECS, *microsoft.SPECS, *aten.SPECS), RULES, TRAITS))
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
