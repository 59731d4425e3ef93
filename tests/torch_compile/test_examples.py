"""The examples train; two processes compute what one does on the joint batch."""

import importlib
import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_plain_loop_learns_in_low_precision(capsys: pytest.CaptureFixture[str]) -> None:
    losses = runpy.run_path(str(EXAMPLES / "torch_compile_training.py"))["train"]("v100", 12)
    assert losses[-1] < 0.75 * losses[0]
    assert int(capsys.readouterr().out.split("training step: ")[1].split(" of ")[0]) > 0


def test_two_processes_give_what_one_gives_on_the_joint_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))  # also of the processes
    example: Any = importlib.import_module("torch_compile_ddp")
    losses, weights = example.train("auto", 4)
    model = example.network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    # Both add the same numbers, of at most 1, in another order; the longest sum is the loss's. Its roundings,
    # by half a unit in the last place each, add up as a random walk.
    within = 2 * example.batches(1)[0][:, :8].numel() ** 0.5 * 2.0**-24
    for x, together in zip(example.batches(4), losses, strict=True):
        loss = torch.nn.functional.mse_loss(model(x), x[:, :8].tanh())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert abs(loss.item() - together) < within
    for name, weight in model.state_dict().items():
        assert torch.allclose(weights[name], weight, rtol=0.0, atol=within)
    sys.modules.pop("torch_compile_ddp")


def test_the_trainer_learns() -> None:
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None:
        pytest.skip("transformers and accelerate are not installed")
    losses = runpy.run_path(str(EXAMPLES / "torch_compile_trainer.py"))["train"](30)
    assert losses[-1] < losses[0]
