"""A few operations of torch's own list; ``python tests/torch_compile/opinfo.py`` runs all."""

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import opinfo

NAMES = [
    "addmm",
    "cdist",
    "cumsum",
    "index_put",
    "linalg.qr",
    "linalg.solve",
    "nn.functional.adaptive_avg_pool3d",
    "nn.functional.ctc_loss",
    "sort",
    "take_along_dim",
    "var",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_fallback_is_torch(name: str) -> None:
    assert opinfo.outcome(opinfo.operations()[name]) == "same"


def test_differences_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(op: Any, sample: Any, backend: str) -> Any:
        return [torch.ones(2) + (backend == "ours")]

    import torch

    monkeypatch.setattr(opinfo, "result", wrong)
    assert "result 0" in opinfo.outcome(opinfo.operations()["addmm"])
    monkeypatch.setattr(
        opinfo, "result", lambda op, sample, backend: ValueError() if backend == "ours" else []
    )
    assert "ValueError" in opinfo.outcome(opinfo.operations()["addmm"])
