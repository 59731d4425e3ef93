"""The models of torch through the backend of torch.compile, held against FP64 as the exported ones are.

    python -m benchmarks.models.compiled [--only STEP,...] [--limit-s S]

``fallback="error"``: what the backend takes, it takes whole. Recurrent layers are handed to it
(``torch._dynamo.config.allow_rnn``). Runs until it says that all is done; killed, it goes on where it was.
Writes results/models_compiled.json and .md.
"""

import gc
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.models import by_hand, exactness, from_diffusers, from_timm, from_transformers, with_torch
from benchmarks.models.case import Case
from benchmarks.models.table import collected, steps_of
from benchmarks.pages import arguments, publish
from benchmarks.steps import Call, Records, Step, StepError, add_arguments, call_of, drive
from campo_onnx.integrations.torch_compile import campo_onnx, report


def _compiled(build: Callable[[], Case], _: Call) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch._dynamo.config.allow_rnn = True

    def draw(number: int) -> Case:
        torch.manual_seed(number)
        return build()

    module = draw(0).module
    run = torch.compile(module, backend=campo_onnx, dynamic=False, options={"fallback": "error"})

    def train(case: Case) -> exactness.Trained:
        module.load_state_dict(case.module.state_dict())
        return with_torch.trained(module, lambda: case.loss(run(**case.inputs), **case.targets))

    try:
        row = exactness.compared(draw, with_torch.TORCH, train)
        found = report(module)
        return {**row, "graphs": len(found.graphs), "kinds": sorted({graph.kind for graph in found.graphs})}
    except Exception as error:  # one model must not end the table
        raise StepError(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
    finally:
        gc.collect()


def steps() -> list[Step]:
    """Give one step for each configuration."""
    families = {
        "by hand": by_hand.CASES,
        "diffusers": from_diffusers.CASES,
        "timm": from_timm.CASES,
        "transformers": from_transformers.CASES,
    }
    return steps_of({family: (cases, _compiled) for family, cases in families.items()})


def collect(records: Records) -> dict[str, Any]:
    """Put together what is on record."""
    return collected(steps(), records, "torch", "transformers", "timm", "diffusers")


def main(given: Sequence[str] | None = None) -> int:
    """Do what is left to do, and write the page."""
    parser = arguments(__doc__)
    add_arguments(parser, "models_out/compiled")
    options = parser.parse_args(given)
    from_timm.without_kernels_of_torchvision()
    return drive(
        steps(), call_of(options), options, lambda records: publish("models_compiled", collect(records))
    )


if __name__ == "__main__":
    sys.exit(main())
