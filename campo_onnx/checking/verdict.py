"""What a check answers: one verdict a rule, and all of them for one graph."""

from dataclasses import dataclass
from enum import StrEnum

from campo_onnx.errors import CampoError


class Status(StrEnum):
    """How a rule came out."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"  # asked for, and not possible here: the reason says why
    NOT_ASKED = "not asked"  # the policy sets no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule found.

    Parameters
    ----------
    status
        How it came out.
    reason
        Why, in a sentence for people.
    value, limit
        What was found and what is allowed, where that is a number (the rule says of what).
    """

    status: Status
    reason: str
    value: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A finding under the name of its rule."""

    rule: str
    finding: Finding

    @property
    def status(self) -> Status:
        """How the rule came out."""
        return self.finding.status


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """Everything that was found out about one mixed graph.

    Parameters
    ----------
    name
        What the policy calls the graph.
    mixed, against
        The files, as they were given.
    verdicts
        One a rule; empty where an error kept the check from happening.
    device, costs
        What the step was predicted for, and from what; ``""`` after an error.
    error
        What kept the check from happening: a missing file, or a mixed graph of another model.
    """

    name: str
    mixed: str
    against: str
    verdicts: tuple[Verdict, ...] = ()
    device: str = ""
    costs: str = ""
    error: CampoError | None = None

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """Rules that failed."""
        return tuple(v for v in self.verdicts if v.status is Status.FAILED)

    @property
    def passed(self) -> bool:
        """Whether the check took place and no rule failed."""
        return self.error is None and not self.failed


def passed(reason: str, *, value: float | None = None, limit: float | None = None) -> Finding:
    """Say that a rule is kept."""
    return Finding(status=Status.PASSED, reason=reason, value=value, limit=limit)


def failed(reason: str, *, value: float | None = None, limit: float | None = None) -> Finding:
    """Say that a rule is broken."""
    return Finding(status=Status.FAILED, reason=reason, value=value, limit=limit)


def not_checked(reason: str) -> Finding:
    """Say that a rule could not be checked here."""
    return Finding(status=Status.NOT_CHECKED, reason=reason)


def not_asked(reason: str) -> Finding:
    """Say that the policy sets no limit."""
    return Finding(status=Status.NOT_ASKED, reason=reason)
