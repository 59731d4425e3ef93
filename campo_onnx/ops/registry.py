"""All operators that are known, each once."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
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
    """Operators by key."""

    def __init__(self, specs: Iterable[OpSpec]) -> None:
        by_key: dict[OpKey, OpSpec] = {}
        for spec in specs:
            if spec.key in by_key:
                raise ValueError(f"the operator {spec.key.label} is registered twice")
            by_key[spec.key] = spec
        self.specs: Mapping[OpKey, OpSpec] = MappingProxyType(by_key)
        self._asking: dict[Ask, Mapping[OpKey, tuple[int, ...]]] = {}

    def spec(self, op: OpKey) -> OpSpec:
        """The facts of an operator; of one that is not registered, that nothing is known."""
        return self.specs.get(op) or OpSpec(key=op, family=Family.OTHER, is_known=False)

    def spec_of(self, signature: Signature) -> OpSpec:
        """The facts of a node's operator; PyTorch's are told apart by an attribute."""
        if signature.op == _ATEN:
            operator = str(signature.attribute("operator", "")).removeprefix("aten::")
            if (own := self.specs.get(OpKey(ATEN, operator))) is not None:
                return own
        return self.spec(signature.op)

    def having(self, *traits: Trait) -> frozenset[OpKey]:
        """The operators that have one of some traits."""
        return frozenset(key for key, spec in self.specs.items() if not spec.traits.isdisjoint(traits))

    def asking(self, what: Ask) -> Mapping[OpKey, tuple[int, ...]]:
        """The operators that ask something of inputs, and the positions of these."""
        if what not in self._asking:
            places = {
                key: tuple(i for i, ask in spec.asks if ask is what) for key, spec in self.specs.items()
            }
            self._asking[what] = MappingProxyType({key: at for key, at in places.items() if at})
        return self._asking[what]

    def of_family(self, *families: Family) -> frozenset[OpKey]:
        """The operators of some families."""
        return frozenset(key for key, spec in self.specs.items() if spec.family in families)


def _with_values(
    specs: Iterable[OpSpec], rules: Mapping[OpKey, Rule], traits: Mapping[OpKey, frozenset[Trait]]
) -> Iterator[OpSpec]:
    keys: set[OpKey] = set()
    for spec in specs:
        keys.add(spec.key)
        values = rules.get(spec.key, spec.values)
        more = traits.get(spec.key, frozenset())
        yield replace(
            spec,
            values=values,
            traits=more | {*_implied(spec.movement, values)},
            asks_accuracy=ASKS.get(spec.key, spec.asks_accuracy),
            passes_accuracy=PASSES.get(spec.key, spec.passes_accuracy),
        )
    if left := (rules.keys() | traits.keys() | ASKS.keys() | PASSES.keys()) - keys:
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


class Ops(AbstractSet[OpKey]):
    """A set of operators that asks the registry in force whenever it is looked at.

    `select`: names the operators of a registry.

    >>> signs = having(Trait.SIGN)
    >>> key = OpKey("my.domain", "Flip")
    >>> key in signs
    False
    >>> with also(OpSpec(key=key, family=Family.OTHER, traits=frozenset({Trait.SIGN}))):
    ...     key in signs, key in signs | {OpKey("", "Abs")}
    (True, True)
    """

    def __init__(self, select: Callable[[Registry], AbstractSet[OpKey]]) -> None:
        self._select = select
        self._registry: Registry | None = None
        self._ops: AbstractSet[OpKey] = frozenset()

    def now(self, registry: Registry | None = None) -> AbstractSet[OpKey]:
        """The operators in a registry, by default in the one in force."""
        registry = registry or _current.get()
        if registry is not self._registry:
            self._ops, self._registry = self._select(registry), registry
        return self._ops

    def __contains__(self, op: object) -> bool:
        return op in (self._ops if _current.get() is self._registry else self.now())

    def __iter__(self) -> Iterator[OpKey]:
        return iter(self.now())

    def __len__(self) -> int:
        return len(self.now())

    def __or__(self, other: AbstractSet[OpKey]) -> "Ops":  # type: ignore[override]  # of operators only
        return Ops(lambda registry: self.now(registry) | _at(other, registry))

    def __ror__(self, other: AbstractSet[OpKey]) -> "Ops":
        return self | other

    def __sub__(self, other: AbstractSet[object]) -> "Ops":
        return Ops(lambda registry: frozenset(op for op in self.now(registry) if op not in other))


def _at(ops: AbstractSet[OpKey], registry: Registry) -> AbstractSet[OpKey]:
    return ops.now(registry) if isinstance(ops, Ops) else ops


def having(*traits: Trait) -> Ops:
    """The operators that have one of some traits, in the registry in force when it is asked."""
    return Ops(lambda registry: registry.having(*traits))


def moving(*movements: Movement) -> Ops:
    """The operators that arrange elements in one of some ways, in the registry in force when it is asked."""
    return Ops(lambda registry: frozenset(k for k, s in registry.specs.items() if s.movement in movements))


RANDOM = Ops(lambda registry: frozenset(key for key, spec in registry.specs.items() if spec.draws))
"""The operators that draw random numbers."""

_current: ContextVar[Registry] = ContextVar("registry", default=REGISTRY)


def current() -> Registry:
    """The registry in force."""
    return _current.get()


def spec(op: OpKey) -> OpSpec:
    """The facts of an operator; of one that is not registered, that nothing is known.

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
