"""CTC's loss, and drawing by weights, in exported steps."""

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
import torch.nn.functional as F
from against_torch import feeds_of, run
from torch import nn

from campo_onnx.export.torch import export_training_step

FRAMES, COUNTS = torch.tensor([9, 6, 4]), torch.tensor([4, 2, 0])
LABELS = torch.tensor([[1, 1, 2, 3], [4, 2, 9, 9], [9, 9, 9, 9]])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("in_rows", [True, False])
def test_every_gradient_of_ctc(reduction: str, is_normalized: bool, in_rows: bool) -> None:
    module = nn.Linear(5, 10)
    labels = LABELS if in_rows else torch.cat([row[:n] for row, n in zip(LABELS, COUNTS, strict=True)])

    def loss(out, labels, frames, counts):
        log_probs = (out.log_softmax(-1) if is_normalized else out).transpose(0, 1)
        return F.ctc_loss(log_probs, labels, frames, counts, reduction=reduction)

    batch = torch.randn(3, 9, 5), labels, FRAMES, COUNTS
    model = export_training_step(module, loss, batch[:1], batch[1:])
    actual = run(model, feeds_of(model, module, batch, loss_scale=np.float32(1)))
    exact = nn.Linear(5, 10).double()
    exact.load_state_dict(module.state_dict())
    expected = loss(exact(batch[0].double()), *batch[1:])
    expected.backward()
    assert actual["loss"] == pytest.approx(expected.item(), rel=1e-6)
    for name, p in exact.named_parameters():
        error = np.abs(actual[f"grad.{name}"] - p.grad.numpy()).max() / p.grad.abs().max().item()
        assert error < 3e-6


@pytest.mark.parametrize("zero_infinity", [True, False])
def test_labels_that_no_frames_can_hold(zero_infinity: bool) -> None:
    """Four labels, two of them the same in a row, take five frames."""
    module = nn.Linear(5, 10)

    def loss(out, labels):
        log_probs = out.log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(log_probs, labels, (4, 4), (4, 1), zero_infinity=zero_infinity)

    batch = torch.randn(2, 4, 5), torch.tensor([[1, 1, 2, 3], [4, 9, 9, 9]])
    model = export_training_step(module, loss, batch[:1], batch[1:])
    actual = run(model, feeds_of(model, module, batch, loss_scale=np.float32(1)))
    expected = loss(module(batch[0]), batch[1])
    expected.backward()
    assert actual["loss"] == pytest.approx(expected.item(), rel=1e-5)
    for name, p in module.named_parameters():
        if zero_infinity:
            assert np.allclose(actual[f"grad.{name}"], p.grad.numpy(), atol=1e-6)
        else:
            assert np.isnan(p.grad.numpy()).any()
            assert not np.isfinite(actual[f"grad.{name}"]).all()


@pytest.mark.parametrize("replacement", [True, False])
def test_places_are_drawn_by_their_weights(replacement: bool) -> None:
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0]).expand(4000, 4).contiguous()

    class Draws(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.scale * torch.multinomial(x, 2, replacement).float()

    model = export_training_step(
        Draws(), lambda out: (out.mean(), {"drawn": out.detach().clone()}), (weights,)
    )
    drawn = run(model, feeds_of(model, Draws(), (weights,), loss_scale=np.float32(1)))["output.drawn"]
    assert set(np.unique(drawn)) == {1, 2}
    assert np.isclose((drawn[:, 0] == 2).mean(), 0.75, atol=0.05)
    if not replacement:
        assert (drawn[:, 0] != drawn[:, 1]).all()
