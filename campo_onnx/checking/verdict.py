"""The result of a check: a verdict for each rule."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from campo_onnx.errors import CampoError

_SHOWN = 3


class Status(StrEnum):
    """Result of a rule."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"  # required, and not possible here: the reason says why
    NOT_ASKED = "not asked"  # the policy sets no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one rule, with its reason.

    `parts` are what the value is the largest of: the error of each output.
    """

    status: Status
    reason: str
    value: float | None = None
    limit: float | None = None
    parts: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", MappingProxyType(dict(self.parts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A finding under the name of its rule."""

    rule: str
    finding: Finding

    @property
    def status(self) -> Status:
        """Result of the rule."""
        return self.finding.status


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """All verdicts on one mixed graph."""

    name: str
    mixed: str
    against: str
    verdicts: tuple[Verdict, ...] = ()  # one per rule; empty after an error
    # device that the step was predicted for, and source of the costs; `""` after an error
    device: str = ""
    costs: str = ""
    captured: bool = False
    # why nothing was checked: a missing file, or a mixed graph of another model
    error: CampoError | None = None

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """Rules that failed."""
        return tuple(v for v in self.verdicts if v.status is Status.FAILED)

    @property
    def passed(self) -> bool:
        """Whether there was no error and no rule failed."""
        return self.error is None and not self.failed


def passed(reason: str, *, value: float | None = None, limit: float | None = None) -> Finding:
    """The rule is satisfied."""
    return Finding(status=Status.PASSED, reason=reason, value=value, limit=limit)


def failed(reason: str, *, value: float | None = None, limit: float | None = None) -> Finding:
    """The rule is violated."""
    return Finding(status=Status.FAILED, reason=reason, value=value, limit=limit)


def not_checked(reason: str) -> Finding:
    """The rule could not be checked here."""
    return Finding(status=Status.NOT_CHECKED, reason=reason)


def not_asked(reason: str) -> Finding:
    """The policy sets no limit."""
    return Finding(status=Status.NOT_ASKED, reason=reason)


def listed(items: Iterable[str]) -> str:
    """Name the first few, and say how many more there are."""
    every = list(items)
    return ", ".join(every[:_SHOWN]) + (f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else "")
