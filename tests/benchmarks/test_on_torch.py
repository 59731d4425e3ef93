"""Steps on PyTorch's own kernels: which sides there are, and what a row compares. No measurement."""

from typing import Any

import pytest

from benchmarks.on_torch import NETWORKS
from benchmarks.on_torch.__main__ import row_of
from benchmarks.on_torch.sides import AHEAD, OF_TORCH, SIDES, sides_on
from benchmarks.pages import provenance, render


def timed(**ms: float) -> dict[str, Any]:
    rounds = {
        side.replace("_", "-"): [AHEAD * value * (1 + k / 100) for k in range(7)]
        for side, value in ms.items()
    }
    return {"rounds_ms": rounds, "failures": {"compile": "no | compiler"}, "losses": {}}


def test_cuda_graphs_are_a_gpus_and_channels_last_of_images() -> None:
    assert set(sides_on("cuda", "resnet50")) == set(SIDES)
    assert not [side for side in sides_on("cuda", "gpt2") if "last" in side]
    assert not [side for side in sides_on("cpu", "resnet50") if "graphs" in side]
    assert {"torch", "fp32", "optimal"} <= set(sides_on("cpu", "gpt2"))


def test_the_best_of_ours_is_compared_with_the_best_of_torchs() -> None:
    row = row_of("gpt2", timed(torch=4.0, compile_bf16=2.0, fp32=3.0, optimal=1.6, optimal_graphs=1.0))
    assert (row["best"], row["ours"]) == ("compile-bf16", "optimal-graphs")
    assert row["best"] in OF_TORCH
    assert row["over_best"]["median"] == pytest.approx(2.0)
    assert row["ms"]["torch"]["median"] == pytest.approx(4.0 * 1.03)
    without = row_of("gpt2", timed(torch=4.0))
    assert (without["ours"], without["over_best"]) == ("", None)


@pytest.mark.parametrize("is_small", [False, True])
def test_a_rehearsal_is_called_so(is_small: bool) -> None:
    pytest.importorskip("jinja2")
    row = row_of("gpt2", timed(torch=4.0, optimal=2.0))
    versions = dict.fromkeys(("campo-onnx", "torch"), "1.0")
    data = {
        "made": provenance() | {"versions": versions},
        "machine": {"device": "a GPU"},
        "setup": {"is_small": is_small, "planned_for": "h200"},
        "sides": {side: SIDES[side].title for side in ("torch", "optimal")},
        "rows": [row],
        "mean": 2.0,
        "missing": [NETWORKS["vgg16"].title],
    }
    text = render("on_torch", data)
    assert ("nothing here is a measurement" in text) is is_small
    assert "compile failed (no / compiler)" in text
    assert "geometric mean: 2.00" in text
