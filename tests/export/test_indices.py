"""An index that torch refuses is an IndexError of a session, and one that torch takes trains as there."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from torch import nn

from campo_onnx.errors import IndexOutOfRangeError
from campo_onnx.export.torch import SGD, export_training_step
from campo_onnx.export.torch.state_dict import first_state
from campo_onnx.training.session import TrainingSession

ROWS, COLUMNS = 5, 4


class Applied(nn.Module):
    """A function of a table, two indices and a buffer that no step changes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(ROWS, COLUMNS)), function
        self.register_buffer("order", torch.arange(ROWS).flip(0))
        self.register_buffer("start", torch.tensor(1))

    def forward(self, index: Any) -> Any:
        return self.function(self, self.weight, index).sin().sum()


def assigned(_: Any, w: Any, i: Any) -> Any:
    x = w.clone()
    x[:, i] += w[:, :2] * 2
    return x


def unpooled(_: Any, w: Any, i: Any) -> Any:
    return F.max_unpool1d(w[None, :2, :2], torch.stack((i, i))[None], 2) * w[0]


USES: dict[str, tuple[Callable[..., Any], int]] = {
    "a number in each row": (lambda _, w, i: w[torch.arange(2), i], COLUMNS),
    "one row, some numbers": (lambda _, w, i: w[i, torch.tensor([3, 0])], ROWS),
    "two indices": (lambda _, w, i: w[i, i.flip(0)], COLUMNS),
    "axes apart": (lambda _, w, i: w.view(ROWS, 2, 2)[torch.arange(2), :, i], 2),
    "by a kept order": (lambda m, w, i: w[m.order[i]], ROWS),
    "behind a kept start": (lambda m, w, i: F.embedding(i + m.start, w), ROWS - 1),
    "of a range": (lambda _, w, i: w[torch.arange(ROWS)[i]], ROWS),
    "rounded": (lambda _, w, i: w[(i * 1.0).round().long()], ROWS),
    "rounded rows": (lambda _, w, i: F.embedding((i * 1.0).round().long(), w), ROWS),
    "rounded labels": (
        lambda _, w, i: F.cross_entropy(w[:2], (i * 1.0).long(), reduction="none"), COLUMNS,
    ),
    "running": (lambda _, w, i: w.index_select(1, i.cumsum(0) - i.cumsum(0)[0] + i[0]), COLUMNS),
    "filled": (lambda _, w, i: w.index_fill(0, i, 2.0), ROWS),
    "assigned": (assigned, COLUMNS),
    "put": (lambda _, w, i: w.index_put((torch.tensor([0, 1]), i), w[0, :2], accumulate=True), COLUMNS),
    "reduced": (lambda _, w, i: w[:3].index_reduce(0, i, w[:2], "amax", include_self=False), 3),
    "scattered": (lambda _, w, i: w[:3].scatter_reduce(0, i[:, None].expand(-1, COLUMNS), w[:2], "mean"), 3),
    "classes": (lambda _, w, i: F.one_hot(i, COLUMNS) * w[:2], COLUMNS),
    "margins": (lambda _, w, i: F.multi_margin_loss(w[:2], i), COLUMNS),
    "several labels": (
        lambda _, w, i: F.multilabel_margin_loss(w[:2], F.pad(i[:, None], (0, 3), value=-1)), COLUMNS,
    ),
    "unpooled": (unpooled, 4),
    "by a mask": (
        lambda _, w, i: w.masked_scatter(torch.zeros(ROWS, 1, dtype=torch.bool).index_fill(0, i, True), -w),
        ROWS,
    ),
}  # fmt: skip
"""Functions, and the size of what they look up in."""


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta:UserWarning")
@pytest.mark.parametrize(("function", "size"), USES.values(), ids=list(USES))
def test_sessions_take_what_torch_takes(function: Callable[..., Any], size: int) -> None:
    torch.manual_seed(0)
    module = Applied(function)
    step = export_training_step(
        module, lambda loss: loss, torch.tensor([0, 1]), optimizer=SGD(), loss_scale=False
    )
    state = first_state(module, step)
    session = TrainingSession(step, state, settings={"lr": 1.0}, runtime="onnxruntime")
    outcomes = set()
    for second in (1, size - 1, -1, size, -size, -size - 1, 2 * size, 2**31, -(2**40)):
        session.load_state(state)
        index = torch.tensor([0, second])
        module.zero_grad()
        try:
            module(index).backward()
        except (IndexError, RuntimeError):
            outcomes.add("raises")
            with pytest.raises(IndexOutOfRangeError, match=r"'input.index' is out of range|reads is out of"):
                session.step({"input.index": index.numpy()})
            assert np.array_equal(session.state()["param.weight"], state["param.weight"])
        else:
            outcomes.add("runs")
            session.step({"input.index": index.numpy()})
            moved = state["param.weight"] - session.state()["param.weight"]
            np.testing.assert_allclose(moved, module.weight.grad.numpy(), rtol=1e-4, atol=1e-5)
    assert outcomes == {"raises", "runs"}


def test_what_cannot_lie_outside_costs_nothing() -> None:
    def function(module: Any, w: Any, i: Any) -> Any:
        """Of proved ranges, of a buffer that no step changes, and of what a session sees."""
        best = F.one_hot(w.argmax(1), COLUMNS) * w + w[module.order]
        return best.sum() + w[torch.arange(ROWS), w.argmax(1)] + F.embedding(i, w)[0, 0]

    step = export_training_step(Applied(function), lambda loss: loss, torch.tensor([0, 1]), loss_scale=False)
    assert not {"Clip", "Min", "Max"} & {node.op_type for node in step.graph.node}
