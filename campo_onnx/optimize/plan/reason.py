"""Why a node has its precision: every reason there is, each with its sentence."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from string import Formatter
from types import MappingProxyType
from typing import TypeAlias

from campo_onnx.ops.refusal import Refusal, Refused
from campo_onnx.wording import duration

Fact: TypeAlias = str | int | float
"""A number or a name that a sentence speaks of."""


class Reason(Enum):
    """The rule that decided about a node.

    The value is what files call it. ``sentence`` and ``summary`` are templates over a verdict's
    facts: the whole reason, and the line under which a report sums such nodes up.
    """

    sentence: str
    summary: str

    def __new__(cls, value: str, sentence: str, summary: str = "") -> "Reason":
        """Make a member of its name in files and its two templates."""
        member = object.__new__(cls)
        member._value_ = value
        member.sentence = sentence
        member.summary = summary or sentence
        return member

    # What no strategy may change.
    ALREADY_LOW = "already-low", "low already in the given graph"
    NO_FP32 = "no-fp32", Refused.NO_FP32.value
    LOSS = "loss", "computes the loss"
    WEIGHT_UPDATE = "weight-update", "updates weights, optimizer state or statistics"
    NO_SCHEMA = "no-schema", Refused.NO_SCHEMA.value
    NO_VARIANT = "no-variant", Refused.NO_VARIANT.value
    NO_CAST = "no-cast", Refused.NO_CAST.value
    UNKNOWN_TYPE = "unknown-type", Refused.UNKNOWN_TYPE.value
    CONSTANT = "constant", Refused.CONSTANT.value
    SHAPE_ONLY = "shape-only", Refused.SHAPE_ONLY.value
    GIVEN_CAST = "given-cast", Refused.GIVEN_CAST.value
    CONVERSION = "conversion", Refused.CONVERSION.value
    STATED_TYPE = "stated-type", Refused.STATED_TYPE.value
    CONTROL_FLOW = "control-flow", Refused.CONTROL_FLOW.value
    TRAINS_IN_FP32 = "trains-in-fp32", Refused.TRAINS_IN_FP32.value
    FRAMEWORK = "framework", Refused.FRAMEWORK.value
    OPERATOR = "operator", "{why}"  # what earlier versions called all of these
    READERS = "readers", "a Cast from another type, which makes what all its readers want"
    USER = "keep-fp32", "named by --keep-fp32"
    KERNEL = (
        "kernel",
        "the {provider} provider has no {low} kernel for {op}",
        "no low-precision kernel",
    )
    SUMS_LOW = (
        "sums-low",
        "the {provider} provider adds the terms of {op} in {low} itself",
        "sums that are added in the low precision",
    )
    GRADIENT_KERNEL = "gradient-kernel", "its gradient: {op}: {why}", "no low-precision kernel"
    OVERFLOW = (
        "overflow",
        "its constant {tensor!r} holds {value:.4g}, which overflows {low}",
        "a constant that overflows",
    )
    UNDERFLOW = (
        "underflow",
        "its constant {tensor!r} holds {value:.4g}, too small for {low}",
        "a constant the low precision loses",
    )
    SCALAR_INPUT = (
        "scalar-input",
        "reads the scalar input {tensor!r}, whose size the graph does not tell",
        "reads a scalar input of unknown size",
    )
    VALUE_OVERFLOW = (
        "value-overflow",
        "{tensor!r} reaches {value:.4g}, which overflows {low}{source:it comes}",
        "a value that overflows",
    )
    VALUE_UNDERFLOW = (
        "value-underflow",
        "{tensor!r} gets as small as {value:.4g}, too small for {low}{source:it comes}",
        "a value the low precision loses",
    )
    VALUE_ROUNDING = (
        "value-rounding",
        "the values of {tensor!r} lie so close to {value:.4g} that {low} hardly tells them apart"
        "{source:that comes}",
        "values too close together for the low precision",
    )
    LOGARITHM = (
        "logarithm",
        "{tensor!r} comes close to 0, or to 1 and is taken from 1, before a logarithm",
        "values close to 0 before a logarithm",
    )
    DIVISOR = (
        "divisor",
        "{tensor!r} comes close to 0, and something is divided by it",
        "values close to 0 that something is divided by",
    )
    SQUARE_OF_SLOPE = (
        "square-of-slope",
        "the square {tensor!r} is multiplied by a slope that is 0 where the square overflows",
        "squares multiplied by a slope of 0",
    )
    CANCELLATION = (
        "cancellation",
        "a term of {tensor!r}, a difference of squares that may cancel",
        "differences of squares that cancel",
    )
    ANGLE = (
        "angle",
        "leads to the angle {tensor!r}, which may be many turns",
        "angles of many turns",
    )
    LONG_SUM = (
        "long-sum",
        "sums {terms:,} values of unknown size, or reads the sum, which may overflow {low}",
        "sums of thousands of values",
    )
    PRODUCT = (
        "product",
        "{tensor!r}, a product or quotient of values of unknown size, may overflow {low}",
        "products and quotients of unknown size",
    )
    ACCURACY = (
        "accuracy",
        "{reader!r} needs {tensor!r} to within {allowed:.2g}, and {low} rounds it by {rounding:.2g}",
        "values that are needed more exactly than the low precision holds them",
    )
    INTEGERS = (
        "integers",
        "{tensor!r} may hold positions or counts beyond {largest:,}, up to which {low} is exact",
        "integers that must stay exact",
    )
    SQUARES = (
        "squares-summed",
        "{tensor!r}, of unknown size, is squared for a sum, or holds such squares",
        "squares of unknown size that are summed",
    )
    UNKNOWN_MASK = (
        "unknown-mask",
        "the input {tensor!r} is added before a softmax and may be a mask of any size; "
        "--range {tensor}=LOW:HIGH tells",
        "an added mask of unknown size",
    )
    UNSCALED = (
        "unscaled",
        "computes with gradients that were divided by the loss scale {tensor!r}",
        "gradients without their loss scale",
    )
    GRADIENT_PRODUCT = (
        "gradient-product",
        "multiplies a gradient and an activation for a sum, and nothing scales the loss",
        "gradients without a loss scale",
    )
    SCALED_SUM = (
        "scaled-sum",
        "sums gradients that carry the loss scale {tensor!r}, and the sum may overflow {low}",
        "sums of scaled gradients",
    )
    DATA_BUDGET = (
        "data-budget",
        "kept FP32 so that every output stays within the error budget",
        "the error budget on the data",
    )
    DATA_OVERFLOW = (
        "data-overflow",
        "{tensor!r} reaches {value:.3g} on the data, which overflows {low}",
        "overflows on the data",
    )
    DATA_UNDERFLOW = (
        "data-underflow",
        "{low} makes {flushed_share:.1%} of {tensor!r} zero on the data, {lost_share:.1%} of its magnitude",
        "too much becomes zero on the data",
    )
    PROBE_FAILS = (
        "probe-fails",
        "with it in {low} the step fails on {batch}: {failure}",
        "the step fails on trial data",
    )
    PROBE_NOT_FINITE = (
        "probe-not-finite",
        "with it in {low}, {tensor!r} is not finite on {batch}, and is in FP32",
        "values that are finite in FP32 alone, on trial data",
    )
    PROBE_INTEGERS = (
        "probe-integers",
        "with it in {low}, {share:.2%} of the whole numbers in {tensor!r} differ on {batch}",
        "whole numbers that differ on trial data",
    )
    PROBE_ERROR = (
        "probe-error",
        "with it in {low}, {tensor!r} is off by {error:.2g} on {batch}; rounding explains {explained:.2g}",
        "more error than rounding explains, on trial data",
    )

    # What the op lists say.
    DENY_LIST = "deny-list", "{op} is on the deny list", "on the deny list"
    UNLISTED = "unlisted", "{op} is on none of the lists, on purpose", "unlisted operator"
    UNKNOWN = "unknown", "{op} is unknown to the lists", "unknown operator"
    PATTERN = "pattern", "{why}"
    DOWNSTREAM_OF_DENY = "downstream-of-deny", "follows an FP32-only node"

    # What a strategy says.
    STRATEGY_FP32 = "strategy-fp32", "the strategy fp32 changes nothing"
    ALLOW_LIST = "allow-list", "on the allow list"
    BETWEEN = "between", "between low nodes, so it saves their casts"
    NOT_BETWEEN = "not-between", "not between low nodes"
    CLEAR_NEIGHBOUR = "clear-neighbour", "reached from a low node through clear nodes"
    CONSUMERS_LOW = "consumers-low", "all its consumers are low"
    FIRST_INPUT = "first-input", "follows its first input", "its inputs are FP32 there"
    WIDEST_INPUT = "widest-input", "runs in the widest type of its inputs", "its inputs are FP32 there"
    MARGIN_FP32 = (
        "margin-fp32",
        "FP32 is faster by {lead_us:time}",
        "FP32 is faster by more than the margin",
    )
    MARGIN_LOW = (
        "margin-low",
        "FP32 is not faster by as much as {margin_us:time} ({low} {gain_us:gains})",
    )
    TRAVERSE_1_LOW = "traverse-1-low", "{gain_us:gains}; its casts cost {cast_us:time}"
    TRAVERSE_1_FP32 = (
        "traverse-1-fp32",
        "would {gain_us:gain}; its casts would cost {cast_us:time}",
        "casts would cost more than low precision gains",
    )
    TRAVERSE_4_LOW = (
        "traverse-4-low",
        "{gain_us:gains} in a group of {nodes} clear nodes; casts change by {cast_us:+.1f} us",
    )
    TRAVERSE_4_FP32 = (
        "traverse-4-fp32",
        "would {gain_us:gain} in a group of {nodes} clear nodes; casts would change by {cast_us:+.1f} us",
        "casts would cost more than low precision gains",
    )
    CUT_LOW = "cut-low", "{gain_us:gains}; {low} gives the shortest step overall"
    CUT_FP32 = (
        "cut-fp32",
        "would {gain_us:gain}; FP32 gives the shortest step overall, casts counted",
        "casts would cost more than low precision gains",
    )
    FRONTIER_LOW = (
        "frontier-low",
        "{gain_us:gains}; {low} gives the shortest step within the predicted error of {error:.2g}",
        "the shortest step within a predicted error",
    )
    FRONTIER_FP32 = (
        "frontier-fp32",
        "would {gain_us:gain}; FP32 gives the shortest step within the predicted error of {error:.2g}",
        "casts or rounding would cost more than low precision gains",
    )

    EARLIER_VERSION = "earlier-version", "{who}: {why}", "{why}"
    AS_WRITTEN = "as-written", "it is so in the mixed file, which does not say why"

    # What is said of the whole plan.
    NEVER_WORSE = "never-worse", "the whole assignment is predicted no faster than FP32"
    MIN_GAIN = (
        "min-gain",
        "{low} would save {saved_share:.1%} of the step; {asked_share:.1%} is asked for",
        "the step would gain too little to be sure of",
    )
    VERIFIED_SLOWER = (
        "verified-slower",
        "measured: the step takes {low_ms:.3g} ms in {low}, {fp32_ms:.3g} ms in FP32 ({outcome})",
        "measured, the mixed step is not faster",
    )
    VERIFIED_AS_GIVEN = (
        "verified-as-given",
        "measured: the step takes {planned_ms:.3g} ms as planned, {given_ms:.3g} ms as the file has it "
        "({outcome})",
        "measured, the planned step is not faster than the file",
    )
    VERIFIED_FAILING = (
        "verified-failing",
        "in {low} the step does not run: {failure}",
        "the mixed step does not run",
    )

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

    Parameters
    ----------
    facts
        What its sentence speaks of: times, tensors, values.

    Raises
    ------
    ValueError
        If the facts are not those the sentence speaks of, or one is text where that has a number.

    Examples
    --------
    >>> Verdict(decided_by=Reason.CUT_LOW, facts={"gain_us": 5.0, "low": "FP16"}).reason
    'gains 5.0 us; FP16 gives the shortest step overall'
    """

    decided_by: Reason
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
