"""Why a node has its precision: every reason there is, each with its sentence."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib import resources
from string import Formatter
from types import MappingProxyType
from typing import TypeAlias

from campo_onnx.ops.refusal import Refusal, Refused
from campo_onnx.wording import duration

Fact: TypeAlias = str | int | float
"""A number or a name that a sentence speaks of."""


_TEXTS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    resources.files(__package__).joinpath("reasons.toml").read_text(encoding="utf-8")
)


class Reason(Enum):
    """The rule that decided about a node.

    The value is what files call it. ``sentence`` and ``summary`` are templates over a verdict's
    facts: the whole reason, and the line under which a report sums such nodes up (``reasons.toml``).
    """

    # What no strategy may change.
    ALREADY_LOW = "already-low"
    NO_FP32 = "no-fp32"
    LOSS = "loss"
    WEIGHT_UPDATE = "weight-update"
    NO_SCHEMA = "no-schema"
    NO_VARIANT = "no-variant"
    NO_CAST = "no-cast"
    UNKNOWN_TYPE = "unknown-type"
    CONSTANT = "constant"
    SHAPE_ONLY = "shape-only"
    GIVEN_CAST = "given-cast"
    CONVERSION = "conversion"
    STATED_TYPE = "stated-type"
    CONTROL_FLOW = "control-flow"
    TRAINS_IN_FP32 = "trains-in-fp32"
    FRAMEWORK = "framework"
    OPERATOR = "operator"  # what earlier versions called all of these
    READERS = "readers"
    USER = "keep-fp32"
    DEMANDED = "demanded-fp32"
    KERNEL = "kernel"
    SUMS_LOW = "sums-low"
    GRADIENT_KERNEL = "gradient-kernel"
    OVERFLOW = "overflow"
    UNDERFLOW = "underflow"
    SCALAR_INPUT = "scalar-input"
    VALUE_OVERFLOW = "value-overflow"
    VALUE_UNDERFLOW = "value-underflow"
    VALUE_ROUNDING = "value-rounding"
    LOGARITHM = "logarithm"
    DIVISOR = "divisor"
    SQUARE_OF_SLOPE = "square-of-slope"
    CANCELLATION = "cancellation"
    REMOVED_MEAN = "removed-mean"
    ANGLE = "angle"
    LONG_SUM = "long-sum"
    PRODUCT = "product"
    ACCURACY = "accuracy"
    COMPARED = "compared"
    HANDED_ON = "handed-on"
    INTEGERS = "integers"
    SQUARES = "squares-summed"
    UNKNOWN_MASK = "unknown-mask"
    UNSCALED = "unscaled"
    GRADIENT_PRODUCT = "gradient-product"
    VANISHING_PRODUCT = "vanishing-product"
    SCALED_SUM = "scaled-sum"
    DATA_BUDGET = "data-budget"
    DATA_OVERFLOW = "data-overflow"
    DATA_UNDERFLOW = "data-underflow"
    PROBE_FAILS = "probe-fails"
    PROBE_NOT_FINITE = "probe-not-finite"
    PROBE_INTEGERS = "probe-integers"
    PROBE_ERROR = "probe-error"

    # What the op lists say.
    DENY_LIST = "deny-list"
    UNLISTED = "unlisted"
    UNKNOWN = "unknown"
    PATTERN = "pattern"
    DOWNSTREAM_OF_DENY = "downstream-of-deny"

    # What a strategy says.
    STRATEGY_FP32 = "strategy-fp32"
    ALLOW_LIST = "allow-list"
    BETWEEN = "between"
    NOT_BETWEEN = "not-between"
    CLEAR_NEIGHBOUR = "clear-neighbour"
    CONSUMERS_LOW = "consumers-low"
    FIRST_INPUT = "first-input"
    WIDEST_INPUT = "widest-input"
    MARGIN_FP32 = "margin-fp32"
    MARGIN_LOW = "margin-low"
    TRAVERSE_1_LOW = "traverse-1-low"
    TRAVERSE_1_FP32 = "traverse-1-fp32"
    TRAVERSE_4_LOW = "traverse-4-low"
    TRAVERSE_4_FP32 = "traverse-4-fp32"
    CUT_LOW = "cut-low"
    CUT_FP32 = "cut-fp32"
    FRONTIER_LOW = "frontier-low"
    FRONTIER_FP32 = "frontier-fp32"
    EARLIER_VERSION = "earlier-version"
    AS_WRITTEN = "as-written"

    # What is said of the whole plan.
    NEVER_WORSE = "never-worse"
    MIN_GAIN = "min-gain"
    VERIFIED_SLOWER = "verified-slower"
    VERIFIED_AS_GIVEN = "verified-as-given"
    VERIFIED_FAILING = "verified-failing"

    @property
    def sentence(self) -> str:
        """Template of the whole reason."""
        return _TEXTS[self.value]["sentence"] if self.value in _TEXTS else Refused[self.name].value

    @property
    def summary(self) -> str:
        """Template of the line of a report."""
        return _TEXTS.get(self.value, {}).get("summary", self.sentence)

    @property
    def remedy(self) -> str | None:
        """Template of what would change the decision."""
        return _TEXTS.get(self.value, {}).get("remedy")

    @property
    def title(self) -> str:
        """The rule itself, behind the name of an operator that it is about."""
        return _TEXTS.get(self.value, {}).get("title", self.summary)

    def of(self, **facts: Fact) -> "Verdict":
        """Decide about a node for this reason."""
        return Verdict(decided_by=self, facts=facts or NO_FACTS)

    def __str__(self) -> str:
        return str(self.value)

    @property
    def fact_names(self) -> frozenset[str]:
        """The facts its templates speak of."""
        return _fields(self.sentence) | _fields(self.summary)


class _Microseconds(float):
    """A time, which templates show as ``time``, or as what a node ``gain``s."""

    def __format__(self, form: str) -> str:
        if form == "time":
            return duration(self)
        if form not in ("gain", "gains"):
            return super().__format__(form)
        s = form.removeprefix("gain")
        if round(self, 1) == 0:
            return f"gain{s} nothing"
        return f"gain{s} {duration(self)}" if self > 0 else f"lose{s} {duration(-self)}"


class _Origin(str):
    """The tensor that a value comes from; nothing is said where that is the tensor spoken of."""

    __slots__ = ()

    def __format__(self, what: str) -> str:
        return f"; {what} from {str(self)!r}" if self else ""


REFUSED = MappingProxyType({refused: Reason[refused.name] for refused in Refused})
"""The reason that each refusal of an operator is in a plan."""


NO_FACTS: Mapping[str, Fact] = MappingProxyType({})


def _unchanging(facts: Mapping[str, Fact]) -> Mapping[str, Fact]:
    """Copy facts, unless they are another verdict's: a large plan says the same of most nodes."""
    if isinstance(facts, MappingProxyType):
        return facts
    return MappingProxyType(dict(facts)) if facts else NO_FACTS


@cache
def _fields(template: str) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in Formatter().parse(template) if name)


@cache
def _numbers(reason: Reason) -> frozenset[str]:
    """The facts that templates show with digits or units."""
    parts = (*Formatter().parse(reason.sentence), *Formatter().parse(reason.summary))
    return frozenset(name for _, name, form, _ in parts if name and form and name != "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why one node has its precision.

    Raises ValueError if the facts are not those the sentence speaks of, or one is text where that has a
    number.

    >>> Verdict(decided_by=Reason.CUT_LOW, facts={"gain_us": 5.0, "low": "FP16"}).reason
    'gains 5.0 us; FP16 gives the shortest step overall'
    """

    decided_by: Reason
    # What its sentence speaks of: times, tensors, values.
    facts: Mapping[str, Fact] = field(default_factory=lambda: NO_FACTS)

    def __post_init__(self) -> None:
        if self.facts.keys() != self.decided_by.fact_names:
            expected = ", ".join(sorted(self.decided_by.fact_names)) or "none"
            raise ValueError(f"{self.decided_by.value} takes these facts: {expected}")
        if text := [name for name in _numbers(self.decided_by) if isinstance(self.facts[name], str)]:
            raise ValueError(f"{self.decided_by.value} takes a number for {text[0]}, not text")
        object.__setattr__(self, "facts", _unchanging(self.facts))

    @classmethod
    def refused(cls, refusal: Refusal) -> "Verdict":
        """Take over what an operator says of itself."""
        return cls(decided_by=REFUSED[refusal.why], facts=dict(refusal.facts))

    @property
    def reason(self) -> str:
        """The whole sentence."""
        return self.decided_by.sentence.format_map(self._shown())

    @property
    def summary(self) -> str:
        """The line of a report that such nodes are summed up under."""
        return self.decided_by.summary.format_map(self._shown())

    def _shown(self) -> Mapping[str, Fact]:
        shown = {k: _Microseconds(fact) if k.endswith("_us") else fact for k, fact in self.facts.items()}
        if "source" in shown and shown["source"] == shown.get("tensor"):
            shown["source"] = ""
        return shown | {k: _Origin(fact) for k, fact in shown.items() if k == "source"}
