"""Properties of its batch that a step reads: taken from the example, and checked in every step."""

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from torch.nn import functional

from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.export.optimizers import SGD
from campo_onnx.export.torch import export_training_step
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import WeightUpdate


def shorter(out, lengths):
    return torch.arange(5) < lengths[:, None]


def written(out, lengths):
    mask, result = shorter(out, lengths), out.sin()
    result[mask] = out[mask].exp()
    return result


def distinct(out, lengths):
    values, places, counts = torch.unique(lengths == 3, return_inverse=True, return_counts=True)
    return out * (places + counts[places]).reshape(2, 1, 1) + values.sum()


def at_places(out, lengths):
    rows, columns = torch.where(shorter(out, lengths))
    return out[rows, columns] * (columns[:, None] + 1)


READS = {
    "length": lambda out, lengths: out[:, : int(lengths.max())],
    "list": lambda out, lengths: torch.cat([o[:n] for o, n in zip(out, lengths.tolist(), strict=True)]),
    "flag": lambda out, lengths: out.tanh() if (lengths > 3).any() else out,
    "mask": lambda out, lengths: out[shorter(out, lengths)].tanh(),
    "select": lambda out, lengths: torch.masked_select(out, shorter(out, lengths)[..., None]),
    "places": at_places,
    "nonzero": lambda out, lengths: out.flatten(0, 1)[shorter(out, lengths).flatten().nonzero()[:, 0]],
    "equal": lambda out, lengths: out if torch.equal(lengths, lengths.sort().values) else out.sin(),
    "in torch": lambda out, lengths: functional.interpolate(out.transpose(1, 2), size=(lengths.max(),)).sin(),
    "repeats": lambda out, lengths: out[0].repeat_interleave(lengths.repeat(2)[:3], 1).sin(),
    "counts": lambda out, lengths: out[..., 0] * torch.bincount(lengths),
    "distinct": distinct,
    "written": written,
    "joined": lambda out, lengths: out[:, : lengths[0]] * torch.tensor([0, lengths[0] + 1])[1],
}
"""Ways to look at the data."""


class Reads(torch.nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.read, self.layer = READS[how], torch.nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, lengths):
        self.calls += 1
        return self.read(self.layer(x), lengths)


EXAMPLE, OTHER = torch.tensor([2, 4]), torch.tensor([3, 1])


def loss(out):
    return (out**2).sum()


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("held", ["graph", "session"])
def test_a_step_of_batches_like_the_example(how: str, held: str) -> None:
    torch.manual_seed(0)
    module = Reads(how)
    with pytest.raises(UnsupportedModelError):
        export_training_step(module, loss, (torch.randn(2, 5, 4), EXAMPLE))
    optimizer = "sgd" if held == "graph" else None
    model = export_training_step(
        module, loss, (torch.randn(2, 5, 4), EXAMPLE), optimizer=optimizer, assume="batch"
    )
    assert module.calls == 0  # the run on the example leaves nothing behind
    assert module.layer.weight.grad is None
    state = {f"param.{n}": p.detach().numpy().copy() for n, p in module.named_parameters()}
    state["buf.calls"] = np.zeros((), np.float32)
    update = None if optimizer else WeightUpdate(optimizer=SGD())
    session = TrainingSession(model, state, update=update, settings={"lr": 0.05}, provider="cpu")
    theirs = torch.optim.SGD(module.parameters(), lr=0.05)
    for _ in range(3):
        x = torch.randn(2, 5, 4)
        theirs.zero_grad()
        expected = loss(module(x, EXAMPLE))
        expected.backward()
        theirs.step()
        result = session.step({"input.x": x.numpy(), "input.lengths": EXAMPLE.numpy()})
        assert result.loss == pytest.approx(expected.item(), rel=1e-5)
        assert not any(name.startswith("assumed.") for name in result.metrics)
    before = session.state()
    with pytest.raises(UsageError, match=r"not like the example.*test_assumed\.py:\d+ .*than"):
        session.step({"input.x": x.numpy(), "input.lengths": OTHER.numpy()})
    for name, value in session.state().items():
        assert (value == before[name]).all()
    assert np.allclose(before["param.layer.weight"], module.layer.weight.detach().numpy(), atol=1e-5)


def test_without_values_there_is_nothing_to_assume() -> None:
    with torch.device("meta"):
        module = Reads("flag")
    with pytest.raises(UsageError, match=r"'param\.layer\.weight' has no values"):
        export_training_step(module, loss, (torch.randn(2, 5, 4), EXAMPLE), assume="batch")


def test_a_size_that_has_no_answer_is_refused_with_another_remedy() -> None:
    module = torch.nn.Linear(4, 3)
    with pytest.raises(UnsupportedModelError, match=r"unique_dim.*assume='batch' has no answer.*as an input"):
        export_training_step(
            module,
            lambda out, y: (out * torch.unique(y, dim=0).shape[0]).sum(),
            torch.randn(5, 4),
            torch.arange(10).reshape(5, 2),
            assume="batch",
        )


def test_what_goes_to_numpy_is_told_where_it_can_run() -> None:
    class Sorts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x)[torch.from_numpy(np.argsort(x.sum(1).numpy()))]

    with pytest.raises(UnsupportedModelError, match=r"test_assumed\.py:\d+ hands.*NumPy.*torch\.compile"):
        export_training_step(Sorts(), loss, torch.randn(5, 4), assume="batch")


def test_labels_that_are_ignored_by_a_mask() -> None:
    """``logits[y != -100]`` of batches with as many labels as the example."""
    torch.manual_seed(1)
    module = torch.nn.Linear(4, 3)

    def masked(out, y):
        return functional.cross_entropy(out[y != -100], y[y != -100])

    y = torch.tensor([0, -100, 2, 1, -100, 0])
    model = export_training_step(module, masked, torch.randn(6, 4), y, optimizer="sgd", assume="batch")
    state = {f"param.{n}": p.detach().numpy() for n, p in module.named_parameters()}
    session = TrainingSession(model, state, settings={"lr": 0.1}, provider="cpu")
    x, y = torch.randn(6, 4), y.flip(0)
    result = session.step({"input.input": x.numpy(), "target.y": y.numpy()})
    assert result.loss == pytest.approx(masked(module(x), y).item(), rel=1e-5)
