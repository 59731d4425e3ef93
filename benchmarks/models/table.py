"""One step for each configuration of a family of models, and the rows of what is on record."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from benchmarks.models import exactness
from benchmarks.models.case import Case
from benchmarks.pages import commit, made
from benchmarks.steps import Call, Records, Step

Families: TypeAlias = Mapping[str, tuple[Mapping[str, Callable[[], Case]], Callable[..., Any]]]
"""By name, the cases of a family and what is done with one: ``work(build, call)``."""

_CODE = ("campo_onnx", "benchmarks/models")


def steps_of(families: Families) -> list[Step]:
    """Give one step for each configuration; a result of other code does not count."""
    asked = {"commit": commit(*_CODE)}

    def step(family: str, name: str, work: Callable[[Call], Any]) -> Step:
        return Step(name=f"{family.replace(' ', '_')}.{name}", work=work, seconds=20.0, asked=asked)

    return [
        step(family, name, partial(work, build))
        for family, (cases, work) in families.items()
        for name, build in cases.items()
    ]


def collected(steps: list[Step], records: Records, *packages: str) -> dict[str, Any]:
    """Put together what is on record, with the versions of these packages."""
    rows = []
    for step in steps:
        known = records.find(step.name)
        if known is None or known["asked"] != step.asked_now({}):
            continue
        family, _, model = step.name.partition(".")
        result = known.get("result") or {"failed": known["failure"]}
        rows.append({"family": family.replace("_", " "), "model": model, **result})
    return {
        "made": made(*packages),
        "commit": commit(*_CODE),
        "rows": rows,
        "limit": exactness.LIMIT,
        "draws": exactness.DRAWS,
    }
