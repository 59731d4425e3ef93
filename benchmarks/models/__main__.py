"""The table of models: what is taken, and how exact it is.

    python -m benchmarks.models [--only STEP,...] [--limit-s S]

Runs until it says that all is done; killed, it goes on where it was. Writes results/models.json and .md.
"""

import argparse
import gc
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.models import by_hand, exactness, from_diffusers, from_timm, from_transformers, with_torch
from benchmarks.models.case import Case
from benchmarks.models.table import Families, collected, steps_of
from benchmarks.pages import publish
from benchmarks.steps import Call, Records, Step, StepError, add_arguments, call_of, drive
from campo_onnx.errors import UnsupportedModelError

_WARMED: list[bool] = []
_PACKAGES = ("torch", "transformers", "timm", "diffusers", "jax", "flax", "equinox", "optax")


def _torch_case(build: Callable[[], Case], _: Call) -> dict[str, Any]:
    import torch

    if not _WARMED:
        from_timm.without_kernels_of_torchvision()
        warnings.simplefilter("ignore")
        _WARMED.append(True)

    def draw(number: int) -> Case:
        torch.manual_seed(number)
        return build()

    return _measured(draw, with_torch.TORCH)


def _jax_case(build: Callable[[], Case], _: Call) -> dict[str, Any]:
    from benchmarks.models import with_jax

    return _measured(partial(with_jax.drawn, build()), with_jax.JAX)


def _measured(draw: Callable[[int], Case], framework: exactness.Framework) -> dict[str, Any]:
    try:
        return exactness.measured(draw, framework)
    except UnsupportedModelError as error:
        return {"refused": str(error)}
    except Exception as error:  # one model must not end the table
        raise StepError(f"{type(error).__name__}: {error}") from error
    finally:
        gc.collect()


def steps() -> list[Step]:
    """Give one step for each configuration."""
    families: Families = {
        "by hand": (by_hand.CASES, _torch_case),
        "diffusers": (from_diffusers.CASES, _torch_case),
        "timm": (from_timm.CASES, _torch_case),
        "transformers": (from_transformers.CASES, _torch_case),
        **_jax_families(),
    }
    return steps_of(families)


def _jax_families() -> dict[str, Any]:
    from benchmarks.models import with_jax

    return {family: (cases, _jax_case) for family, cases in with_jax.FAMILIES.items()}


def collect(records: Records) -> dict[str, Any]:
    """Put together what is on record."""
    return {**collected(steps(), records, *_PACKAGES), "device": exactness.PLANNED_FOR}


def main(arguments: list[str] | None = None) -> int:
    """Do what is left to do, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, "models_out")
    options = parser.parse_args(arguments)
    return drive(steps(), call_of(options), options, lambda records: publish("models", collect(records)))


if __name__ == "__main__":
    sys.exit(main())
