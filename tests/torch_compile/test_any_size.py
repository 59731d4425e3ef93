"""Sizes that change from step to step: a graph that runs at any size, learned from the first ones."""

import copy
import gc
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_eager import compiled, distance, gradients, weighted, worst_of_steps
from torch import nn

from campo_onnx.errors import IndexOutOfRangeError
from campo_onnx.integrations.torch_compile import joint, report
from campo_onnx.ir.sizes.formulas import array_formula_of, formula_of

ROUNDING = 1e-5
SIZES = [(8, 17), (8, 23), (5, 40), (8, 31), (6, 12)]


class Language(nn.Module):
    """Parts of language models that depend on lengths: positions, a causal mask, padding, heads, a mean."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(64, 16)
        self.norm, self.project = nn.LayerNorm(16), nn.Linear(16, 48)
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(16, 50)

    def forward(self, ids: Any, mask: Any) -> Any:
        batch, length = ids.shape
        x = self.norm(self.words(ids) + self.places(torch.arange(length)))
        q, k, v = (t.view(batch, length, 4, 4).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / 2
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        scores = scores.masked_fill(~(causal & mask[:, None, None, :]), -1e4)
        y = self.drop(scores.softmax(-1)) @ v
        y = self.head(y.transpose(1, 2).reshape(batch, length, 16))
        return y - y.mean(1, keepdim=True) / length


def text(batch: int, length: int) -> list[Any]:
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[0, length // 2 :] = False
    return [torch.randint(50, (batch, length)), mask]


def random_sizes(seed: int, count: int) -> list[tuple[int, int]]:
    generator = random.Random(seed)
    return [(generator.choice([8, 8, 8, 8, 3]), generator.randint(4, 60)) for _ in range(count)]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are planned for one set of sizes, from now on."""
    graphs: list[Any] = []
    plan = joint.plan_graph
    monkeypatch.setattr(joint, "plan_graph", lambda *args: graphs.append(args[0]) or plan(*args))
    return graphs


@pytest.mark.parametrize("seed", range(2))
def test_random_lengths_match_eager_with_one_graph_for_all(seed: int, planned: list[Any]) -> None:
    module = Language()
    batches = [text(*sizes) for sizes in random_sizes(seed, 24)]
    assert worst_of_steps(module, batches, dynamic=True) < ROUNDING
    assert len(planned) <= 7
    assert "training step at any size" in str(report(module))


def test_low_precision_is_planned_once_for_all_sizes(planned: list[Any]) -> None:
    module = Language(0.0)
    options = {"device": "h200", "strategy": "nvidia-amp"}
    batches = [text(*sizes) for sizes in random_sizes(2, 14)]
    assert 2.0**-16 < worst_of_steps(module, batches, dynamic=True, **options) < 2.0**-6
    assert len(planned) <= 7
    assert [g for g in report(module).graphs if g.kind == "training step at any size" and g.plan.low_nodes]


class Halved(nn.Module):
    """A step whose sizes are not polynomials: halves that are rounded down, and windows with remainders."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(3, 4, 3, stride=2), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        y = self.second(self.first(x).transpose(1, 2))
        y = nn.functional.pad(y, (0, 0, 0, -y.shape[1] % 4))
        return y.unflatten(1, (-1, 4)).mean(2)


@pytest.mark.parametrize(
    "lengths", [(16, 24, 32, 40, 48, 35, 30, 25, 36), (9, 10, 11, 12, 13, 14, 15, 16, 17)]
)
def test_lengths_that_are_halved_and_padded_match_eager(lengths: tuple[int, ...]) -> None:
    batches = [[torch.randn(4, 3, length)] for length in lengths]
    assert worst_of_steps(Halved(), batches, dynamic=True) < ROUNDING


def test_backward_passes_belong_to_the_graph_that_ran_forward() -> None:
    """The graph of any sizes lays out what it keeps otherwise than those of one set of sizes."""
    module = Language(0.0)
    eager, run = copy.deepcopy(module), compiled(module, dynamic=True)
    batches = [text(*sizes) for sizes in (*SIZES, *SIZES, (7, 20), (7, 33), *SIZES)]
    for side in (run, eager):
        outputs = [side(*batch) for batch in batches]
        sum(weighted(y) for y in reversed(outputs)).backward()
    assert distance([p.grad for p in module.parameters()], [p.grad for p in eager.parameters()]) < ROUNDING


def test_an_index_out_of_range_is_refused_at_a_new_size() -> None:
    module = Language()
    run = compiled(module, dynamic=True)
    for sizes in (*SIZES, (8, 20), (8, 21), (8, 22)):
        gradients(lambda sizes=sizes: run(*text(*sizes)), module)
    ids, mask = text(8, 25)
    ids[3, 4] = 50
    with pytest.raises(IndexOutOfRangeError, match="50"):
        run(ids, mask)


def test_a_new_size_outside_of_what_was_seen_is_compared_first(monkeypatch: pytest.MonkeyPatch) -> None:
    translated: list[tuple[int, ...]] = []
    flat = joint.JointGraph._flat
    monkeypatch.setattr(
        joint.JointGraph, "_flat", lambda self, sizes: translated.append(sizes) or flat(self, sizes)
    )
    module = Language()
    run = compiled(module, dynamic=True)
    for sizes in (*SIZES, (8, 20), (8, 21), (8, 22), (8, 24), (6, 33), (8, 60)):
        gradients(lambda sizes=sizes: run(*text(*sizes)), module)
    seen = {tuple(sorted(sizes)) for sizes in translated}
    assert {(8, 20), (8, 60)} <= seen
    assert not {(8, 24), (6, 33)} & seen


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([17, 23, 40, 31, 12], 33),
        ([136, 184, 200, 248, 72], 231),
        ([16, 22, 39, 30, 11], 32),
        ([289, 529, 1600, 961, 144], 1089),
        ([8 * 17.0, 8 * 23.0, 200.0, 248.0, 72.0], 231.0),
        ([1 / n for _, n in SIZES], 1 / 33),
        ([float(np.float32(n / (n - 1))) for _, n in SIZES], 33 / 32),
        ([4, 4, 4, 4, 4], 4),
    ],
)
def test_formulas_are_read_off(numbers: list[Any], expected: float) -> None:
    formula = formula_of(numbers, SIZES)
    assert formula is not None
    assert formula.at((7, 33)) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(
    ("numbers", "sizes"),
    [
        ([8, 11, 20, 15, 6], SIZES),  # halves, rounded down
        ([17, 23, 40, 31, 13], SIZES),  # one that is different
        ([3, 4, 5, 6], [(3, 3), (4, 4), (5, 5), (6, 6)]),  # either of two
        ([1.0, float("nan"), 1.0, 1.0, 1.0], SIZES),
    ],
)
def test_formulas_that_do_not_fit_or_leave_a_choice_are_refused(numbers: Any, sizes: Any) -> None:
    assert formula_of(numbers, sizes) is None


def test_arrays_may_count_along_their_axes() -> None:
    arrays = [np.add.outer(np.arange(b) * n, np.arange(n) * 2) + 5 for b, n in SIZES]
    formula = array_formula_of(arrays, SIZES)
    assert formula is not None
    np.testing.assert_array_equal(formula.at((3, 9)), np.add.outer(np.arange(3) * 9, np.arange(9) * 2) + 5)
    assert array_formula_of([a**2 for a in arrays], SIZES) is None


def alive() -> Counter[str]:
    """Count torch's and our own objects, and the texts of graphs that torch keeps."""
    gc.collect()
    kinds = (type(each) for each in gc.get_objects())
    counts = Counter(k.__qualname__ for k in kinds if str(k.__module__).startswith(("torch", "campo_onnx")))
    counts["texts"] = len(torch.fx.graph_module._loader.eval_cache)
    return counts


def test_sets_of_sizes_that_were_dropped_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "_MOST_RESIZED", 4)
    call = compiled(Language())
    counts = []
    lengths = list(range(8, 60))
    random.Random(0).shuffle(lengths)
    for lot in ([8, 59, 30, 40, *lengths[:20]], lengths[20:36], lengths[36:]):
        for length in lot:
            call(*text(8, length)).sum().backward()
        counts.append(alive())
    assert counts[1]["TrainingStep"] < len(lengths[20:36])
    assert counts[2] - counts[1] == Counter()
