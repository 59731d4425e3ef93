"""A table of models: one step for each configuration of each family, and the page of what is on record."""

import gc
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.models import by_hand, exactness, from_diffusers, from_timm, from_transformers
from benchmarks.models.case import Case
from benchmarks.pages import arguments, commit, provenance, publish
from benchmarks.steps import Call, Records, Step, StepError, add_arguments, call_of, drive
from campo_onnx.errors import UnsupportedModelError

Row: TypeAlias = dict[str, Any]
Build: TypeAlias = Callable[[], Case]
Families: TypeAlias = Mapping[str, tuple[Mapping[str, Build], Callable[[Build], Row]]]
"""By name, the cases of a family, and what makes the row of one."""

_CODE = "campo_onnx"
"""The code whose commit a result belongs to; a case that changes is done anew by removing its record."""


def of_torch(row: Callable[[Build], Row]) -> Families:
    """Give the families of torch."""
    from_timm.without_kernels_of_torchvision()
    families = {
        "by hand": by_hand.CASES,
        "diffusers": from_diffusers.CASES,
        "timm": from_timm.CASES,
        "transformers": from_transformers.CASES,
    }
    return {family: (cases, row) for family, cases in families.items()}


def drawn(build: Build) -> Callable[[int], Case]:
    """Give what builds a case of torch with weights and a batch of its own."""
    import torch

    def draw(number: int) -> Case:
        torch.manual_seed(number)
        return build()

    return draw


def steps_of(families: Families) -> list[Step]:
    """Give one step for each configuration; a result of other code does not count."""
    asked = {"commit": commit(_CODE)}
    return [
        Step(
            name=f"{family.replace(' ', '_')}.{name}",
            work=partial(_work, row, build),
            seconds=20.0,
            asked=asked,
        )
        for family, (cases, row) in families.items()
        for name, build in cases.items()
    ]


def _work(row: Callable[[Build], Row], build: Build, _: Call) -> Row:
    warnings.simplefilter("ignore")
    try:
        return row(build)
    except UnsupportedModelError as error:
        return {"refused": str(error)}
    except Exception as error:  # one model must not end the table
        said = next(iter(str(error).splitlines()), "")
        raise StepError(f"{type(error).__name__}: {said}") from error
    finally:
        gc.collect()


def collected(steps: list[Step], records: Records, *packages: str) -> Row:
    """Put together what is on record, with the versions of these packages."""
    rows: list[Row] = []
    left: list[str] = []
    for step in steps:
        record = records.find(step.name)
        family, _, model = step.name.partition(".")
        if record is None or record["asked"] != step.asked_now({}):
            left.append(model)
            continue
        result = record.get("result") or {"failed": record["failure"]}
        rows.append({"family": family.replace("_", " "), "model": model, **result})
    return {
        "made": provenance(*packages),
        "commit": commit(_CODE),
        "device": exactness.PLANNED_FOR,
        "rows": rows,
        "left": left,
        "limit": exactness.LIMIT,
        "draws": exactness.DRAWS,
    }


def make(claim: str, doc: str | None, work: str, families: Families, *packages: str) -> None:
    """Do what is left of a table; write its page when it is whole or asked for; end with the exit code."""
    parser = arguments(doc)
    add_arguments(parser, work)
    options = parser.parse_args()
    steps = steps_of(families)

    def write(records: Records) -> tuple[Path, ...]:
        table = collected(steps, records, *packages)
        return publish(claim, table) if options.report or not table["left"] else ()

    sys.exit(drive(steps, call_of(options), options, write))
