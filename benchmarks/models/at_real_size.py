"""Models at the sizes that are published, planned for three targets; each plan is checked in emulation.

One more plan lowers whatever lists and values allow, worth it or not: a small batch leaves a fast GPU little
that pays, and a check of what stays in FP32 shows nothing.

    python -m benchmarks.models.at_real_size [--only STEP,...] [--limit-s S]

Planned and checked by the command line, as in benchmarks/checks.py, both by public figures of the device: a
check knows no calibration. Runs until it says that all is done; killed, it goes on with the model where it
was. Writes results/models_at_real_size.json and .md.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch

from benchmarks.checks import checked
from benchmarks.models import real_by_hand
from benchmarks.models.case import Case
from benchmarks.models.from_transformers import case_of, table
from benchmarks.models.table import Build, Families, Row, drawn, make
from benchmarks.models.with_torch import TORCH

_BY_PUBLIC_FIGURES = ("--costs", "datasheet")
_H200 = ("--device", "h200", "--precision", "fp16", *_BY_PUBLIC_FIGURES)
TARGETS = {
    "V100, FP16": ("--device", "v100", *_BY_PUBLIC_FIGURES),
    "H200, FP16, captured": (*_H200, "--execution", "graph"),
    "OpenVINO, BF16": ("--device", "zen4", "--runtime", "openvino", *_BY_PUBLIC_FIGURES),
}
_WORTH_IT_OR_NOT = "H200, FP16, worth it or not"
_LIMIT_S = 900.0
"""Of one plan or one check; a longer one is on the page as such."""


def _batch(row: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Draw a batch: numbers by their shape, indices by shape and bound; the first three words are special."""
    numbers, indices = dict(row.get("numbers", {})), dict(row.get("indices", {}))
    if "images" in row:
        numbers["pixel_values"] = row["images"]
        indices["labels"] = [row["images"][0], 2]
    if "text" in row:
        indices["input_ids"] = indices["labels"] = row["text"]
    drawn = {name: torch.randn(shape) for name, shape in numbers.items()}
    return drawn | {
        name: torch.randint(3 if below > 3 else 0, below, shape) for name, (*shape, below) in indices.items()
    }


def _cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    for name, row in table("real_sizes.toml")["models"].items():
        options = {"assume": row["assume"]} if "assume" in row else {}
        yield name, partial(case_of, row["model"], partial(_batch, row), row.get("own", {}), options)


def _row(build: Build) -> Row:
    """Export a model once; plan it for each target and check the plan."""
    case = drawn(build)(0)
    with tempfile.TemporaryDirectory() as scratch:
        graph = Path(scratch, "step.onnx")
        began = time.monotonic()
        model = TORCH.export(case)
        seconds = time.monotonic() - began
        onnx.save(model, graph)
        facts = {"nodes": len(model.graph.node), "export_s": seconds}
        facts["parameters"] = sum(parameter.numel() for parameter in case.module.parameters())
        del model, case
        targets = {name: checked(graph, "optimal", device, _LIMIT_S) for name, device in TARGETS.items()}
        targets[_WORTH_IT_OR_NOT] = checked(graph, "fine-grained", _H200, _LIMIT_S)
        return {**facts, "targets": targets}


if __name__ == "__main__":
    families: Families = {"transformers": (dict(_cases()), _row), "by hand": (real_by_hand.CASES, _row)}
    make(
        "models_at_real_size", __doc__, "models_out/real_size", families, "torch", "transformers", "openvino"
    )
