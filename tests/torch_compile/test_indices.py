"""Where eager raises for an index or a label, so does a compiled step; where it counts from the end, too."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from against_eager import compiled
from torch import nn

from campo_onnx.errors import IndexOutOfRangeError
from campo_onnx.export.torch.indices import Range, range_of

ROWS, CLASSES = 5, 4


class Applied(nn.Module):
    """A function of a table and indices."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(ROWS, CLASSES)), function

    def forward(self, index: Any) -> Any:
        return self.function(self.weight, index)


def zeros() -> Any:
    return torch.zeros(3, CLASSES)


def pairs(index: Any) -> Any:
    return index[:, None].expand(-1, CLASSES)


USES: dict[str, tuple[Callable[..., Any], list[list[int]]]] = {
    "cross_entropy": (F.cross_entropy, [[0, 1, -1, 2, 3], [0, 1, 4, 2, 3], [0, 1, -100, 2, 3]]),
    "ignored label": (
        lambda w, y: F.cross_entropy(w, y, ignore_index=-1), [[0, 1, -1, 2, 3], [0, 1, -100, 2, 3]],
    ),
    "smoothed": (
        lambda w, y: F.cross_entropy(w, y, label_smoothing=0.1), [[0, 1, -1, 2, 3], [0, -100, 1, 2, 3]],
    ),
    "weighted": (
        lambda w, y: F.cross_entropy(w, y, weight=torch.arange(1.0, 5)),
        [[0, 1, -1, 2, 3], [0, -100, 1, 2, 3]],
    ),
    "shifted labels": (lambda w, y: F.cross_entropy(w[:-1], y[1:]), [[-7, 1, 0, 2, 3], [0, 1, -7, 2, 3]]),
    "of images": (
        lambda w, y: F.cross_entropy(w.t()[None, :, :, None], y[None, :, None]),
        [[0, 1, -1, 2, 3], [0, 1, 2, 3, 0]],
    ),
    "embedding": (lambda w, i: F.embedding(i, w).sin().sum(), [[0, -1], [0, 5], [4, 4]]),
    "embedding with padding": (
        lambda w, i: F.embedding(i, w, padding_idx=-1).sin().sum(), [[0, -1], [0, 4]],
    ),
    "bag": (lambda w, i: F.embedding_bag(i[None], w).sin().sum(), [[0, -1], [0, 4]]),
    "gather": (lambda w, i: w.gather(0, i[:, None]).sin().sum(), [[0, -1], [0, 5], [4, 4]]),
    "index_select": (lambda w, i: w.index_select(1, i).sin().sum(), [[0, -1], [0, 4], [3, 3]]),
    "index_add": (
        lambda w, i: (zeros().index_add(0, i, w[:2], alpha=2.0) * w[0]).sum(), [[0, -1], [0, 3], [2, 2]],
    ),
    "index_copy": (lambda w, i: (zeros().index_copy(0, i, w[:2]) * w[0]).sum(), [[0, -1], [0, 3], [2, 1]]),
    "index_fill": (lambda w, i: (w.index_fill(1, i, 2.0) * w).sum(), [[0, -1], [0, 4], [0, -5]]),
    "scatter": (lambda w, i: (zeros().scatter(0, pairs(i), w[:2]) * w[0]).sum(), [[0, -1], [0, 3], [2, 1]]),
    "scatter_add": (
        lambda w, i: (zeros().scatter_add(0, pairs(i), w[:2]) * w[0]).sum(), [[0, -1], [0, 3], [2, 2]],
    ),
    "subscript": (lambda w, i: w[i].sin().sum(), [[0, -1], [0, 5], [0, -6]]),
    "assignment": (
        lambda w, i: (w.clone().index_put((i,), torch.ones(4)) * w[0]).sum(), [[0, -1], [0, 5], [0, -6]],
    ),
    "take": (lambda w, i: (torch.take(w, i) * w[0, 0]).sum(), [[0, -1], [0, 20], [19, 19]]),
    "scatter_reduce": (
        lambda w, i: (zeros().scatter_reduce(0, pairs(i), w[:2], "amax") * w[0]).sum(),
        [[0, -1], [0, 3], [2, 1]],
    ),
    "index_reduce": (
        lambda w, i: (zeros().index_reduce(0, i, w[:2], "mean") * w[0]).sum(), [[0, -1], [0, 3], [2, 2]],
    ),
    "short whole numbers": (lambda w, i: F.embedding(i.int(), w).sin().sum(), [[0, -1], [0, 5], [4, 4]]),
    "running": (lambda w, i: w[i.cumsum(0)].sin().sum(), [[0, 5], [0, -6], [1, 2]]),
    "joined": (lambda w, i: w[torch.cat((i, i + 1))].sin().sum(), [[0, 4], [0, -6], [1, 2]]),
    "of a range": (lambda w, i: w[torch.arange(ROWS)[i]].sin().sum(), [[0, 5], [0, -6], [-1, 2]]),
    "axes apart": (
        lambda w, i: w.view(ROWS, 2, 2)[torch.arange(2), :, i].sin().sum(), [[0, 2], [-3, 0], [1, -2]],
    ),
    "margins": (lambda w, i: F.multi_margin_loss(w[:2], i), [[0, 4], [0, -1], [1, 3]]),
    "several labels": (
        lambda w, i: F.multilabel_margin_loss(w[:2], F.pad(i[:, None], (0, 3), value=-1)),
        [[0, 4], [0, -2], [-1, 3]],
    ),
    "unpooled": (
        lambda w, i: F.max_unpool1d(w[None, :2, :2], torch.stack((i, i))[None], 2).sin().sum() + w.sum(),
        [[0, 4], [-1, 2], [1, 3]],
    ),
    "computed": (
        lambda w, i: F.embedding((w.detach()[0, :2] * 0).long() + i, w).sin().sum(),
        [[0, -1], [0, 5], [4, 0]],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta:UserWarning")
@pytest.mark.parametrize(("function", "batches"), USES.values(), ids=list(USES))
def test_as_in_eager(function: Callable[..., Any], batches: list[list[int]]) -> None:
    module = Applied(function)
    eager, run = copy.deepcopy(module), compiled(module)
    outcomes = set()
    for numbers in batches:
        index = torch.tensor(numbers)
        module.zero_grad()
        eager.zero_grad()
        try:
            eager(index).backward()
        except (IndexError, RuntimeError):
            outcomes.add("raises")
            with pytest.raises(IndexOutOfRangeError, match="out of range") as caught:
                run(index)
            assert function is USES["computed"][0] or "input.index" in str(caught.value)
        else:
            outcomes.add("runs")
            run(index).backward()
            torch.testing.assert_close(module.weight.grad, eager.weight.grad)
    assert outcomes == {"raises", "runs"}


def traced_range(function: Callable[..., Any], *inputs: Any) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    return range_of(graph.output_node().args[0])


def test_ranges_are_proved_where_operations_tell() -> None:
    x, i = torch.randn(3, 7), torch.arange(6)
    assert traced_range(lambda x: x.argmax(1), x) == Range(0, 6)
    assert traced_range(lambda x: x.argmax(), x) == Range(0, 20)
    assert traced_range(lambda x: x.topk(2, 0)[1] + 4, x) == Range(4, 6)
    assert traced_range(lambda x: x.sort(0)[1][1:].flip(0), x) == Range(0, 2)
    assert traced_range(lambda x: x.max(1)[1] * -2, x) == Range(-12, 0)
    assert traced_range(lambda i: i.clamp(2, 4).view(2, 3), i) == Range(2, 4)
    assert traced_range(lambda i: i.clamp(2), i) is None
    assert traced_range(lambda i: i % 5, i) == Range(0, 4)
    assert traced_range(lambda i: i, i) is None
    assert traced_range(lambda i: torch.where(i > 2, 3, torch.zeros_like(i)), i) == Range(0, 3)
