"""Prices of rules: how much faster the step could be if one of them did not bind."""

from dataclasses import dataclass

from campo_onnx.optimize.plan.reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePrice:
    """One rule, and the fastest step without it."""

    rule: Reason
    # Operator, or finding of a pattern rule, that it is about; `""` where it is about values or places.
    subject: str = ""
    nodes: int
    price_us: float  # what the fastest step without it saves. Prices of several rules do not add up.
    # How many more nodes are in low precision there; negative where casts are saved in another way.
    low_nodes: int
    # Error of that step on the batches, emulated; None where there were none, or it is not finite.
    error: float | None = None
    breaks: bool = False  # whether values of that step are not finite on the batches

    @property
    def title(self) -> str:
        """The rule in a few words.

        >>> RulePrice(rule=Reason.DENY_LIST, subject="Exp", nodes=2, price_us=1.5, low_nodes=1).title
        'Exp is on the deny list'
        """
        if self.rule is Reason.PATTERN:
            return self.subject
        about = f"{self.subject} " if self.subject else ""
        return about + self.rule.title


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePrices:
    """Prices of all rules that bind, the dearest first."""

    # The fastest step with all rules, which is what prices are beside: the step of the plan itself may be
    # longer, as another point of the frontier, or one that gained too little.
    predicted_us: float
    error: float | None = None  # its error on the batches, emulated; None where there were none
    prices: tuple[RulePrice, ...]

    def sentence(self, price: RulePrice) -> str:
        """Say what a rule costs, and what it saves in error.

        >>> exp = RulePrice(
        ...     rule=Reason.DENY_LIST, subject="Exp", nodes=2, price_us=31.0, low_nodes=1, error=1e-3
        ... )
        >>> RulePrices(predicted_us=1000.0, error=1e-3, prices=(exp,)).sentence(exp)
        'costs 3.1% of the step and saves no error on the batches'
        """
        share = price.price_us / self.predicted_us if self.predicted_us else 0.0
        told = "less than 0.1%" if share < _LEAST_TOLD else f"{share:.1%}"
        cost = f"costs {told} of the step" if price.price_us else "costs nothing"
        if self.error is None:
            return cost
        if price.breaks or price.error is None:
            return f"{cost}, and without it the step is not finite on the batches"
        if price.error <= self.error * _ALIKE:
            return f"{cost} and saves no error on the batches"
        errors = f"{price.error:.2g} instead of {self.error:.2g}"
        return f"{cost}, and without it the error on the batches is {errors}"


_LEAST_TOLD = 5e-4  # of the step
_ALIKE = 1.02
"""Errors within this factor count as the same: roundings of other nodes move them as much."""
