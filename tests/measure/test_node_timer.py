"""Timing single nodes: on a clock that only steps move, and on the CPU provider."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import onnx
import pytest
from onnx import TensorProto

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.measure import node_timer
from campo_onnx.measure.node_timer import VIEW_NODE, Measured, NodeTimer, time_all, timed_as
from campo_onnx.measure.one_node import chain_model, one_node_model, one_node_view
from campo_onnx.measure.store import Store, now
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature, make_signature
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.registry import load, machine
from campo_onnx.runtime.timing import Effort, Step, Timing, copies_for

F = int(TensorProto.FLOAT)
QUICK = Effort(warmup=1, repeats=9, least=3, budget_s=0.1)


def node(op_type: str, *shapes: tuple[int, ...], output: tuple[int, ...]) -> Signature:
    return make_signature(OpKey("", op_type), [(F, shape) for shape in shapes], [(F, output)])


def matmul(n: int) -> Signature:
    return node("MatMul", (n, n), (n, n), output=(n, n))


@pytest.fixture
def timer() -> NodeTimer:
    return NodeTimer(machine=machine("cpu", threads=1), store=Store(), effort=QUICK)


CALL_US = 30.0  # what every run costs, however many copies of a node are in the model
COPY_US = 80.0
DISTURBED_US = 5000.0


@pytest.fixture
def imagined(clock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Let steps take what a test says: `disturbed` tells by number which runs another program delays."""

    def imagine(copy_us: float = COPY_US, disturbed: Callable[[int], bool] = lambda run: False) -> list[int]:
        built: list[int] = []
        runs = count()

        def step(_signature: Signature, _feeds: object, copies: int, _timer: NodeTimer) -> Step:
            built.append(copies)
            return lambda: clock.pass_us(CALL_US + copies * copy_us + DISTURBED_US * disturbed(next(runs)))

        monkeypatch.setattr(node_timer, "_step", step)
        return built

    return imagine


def test_one_copy_is_told_from_what_every_run_costs(timer: NodeTimer, imagined) -> None:
    built = imagined()
    timing = timer.time(matmul(8))
    assert (timing.median_us, timing.spread_us) == pytest.approx((COPY_US, 0.0))
    assert built == [1, 1 + copies_for(CALL_US + COPY_US, node_bytes=1, limit_bytes=1e9)]


def test_disturbed_runs_do_not_count(timer: NodeTimer, imagined) -> None:
    imagined(disturbed=lambda run: run % 5 == 4)
    assert timer.time(matmul(8)).median_us == pytest.approx(COPY_US)


@pytest.mark.parametrize(("retries", "steady"), [(0, False), (2, True)])
def test_a_time_that_scatters_is_taken_again(
    timer: NodeTimer, imagined, monkeypatch: pytest.MonkeyPatch, retries: int, steady: bool
) -> None:
    monkeypatch.setattr(node_timer, "_RETRIES", retries)
    first_slope = range(
        3 + 2, 3 + 2 + 2 * 9
    )  # after the runs that say how many copies to take, and a warm-up
    many = first_slope[1::2]
    imagined(disturbed=lambda run: run in many[2:])
    timing = timer.time(matmul(8))
    assert (timing.spread_us <= 0.2 * timing.median_us) == steady


def test_no_node_takes_less_than_nothing(timer: NodeTimer, imagined) -> None:
    imagined(copy_us=-0.5)
    assert timer.time(matmul(8)).median_us == 0.0


def kernels(signature: Signature) -> Counter[str]:
    """Operators that the CPU provider runs for a node."""
    here = machine("cpu", threads=1)
    feeds = {f"{name}_0": array for name, array in synthesize(one_node_view(signature)).items()}
    program = load(one_node_model(signature, 1), here, settings=LoadSettings(traces=True))
    return Counter(node.kernel for node in program.node_times(feeds, repeats=1).nodes)


def test_low_precision_costs_its_casts_on_a_cpu() -> None:
    add = node("Add", (64,), (64,), output=(64,))
    low = lowered(add, ports_of(add, Precision.FP16), Precision.FP16)
    assert low is not None
    assert kernels(add) == {"Add": 1}
    assert kernels(low) == {"Add": 1, "Cast": 3}


def test_a_timing_is_taken_once(timer: NodeTimer) -> None:
    made_up = Timing(median_us=123456.0, spread_us=0.0, repeats=1)
    timer.store.add(timer.key(matmul(32)), made_up)
    assert timer.time(matmul(32)) == made_up
    other = replace(timer, machine=replace(timer.machine, ort="0.0"))
    assert other.find(matmul(32)) is None


@pytest.mark.parametrize(
    ("stored_us", "spread_us", "expected_us"),
    [
        (COPY_US / 2, 0.0, COPY_US / 2),
        (COPY_US * 2, 0.0, COPY_US),
        (0.0, 0.0, COPY_US),  # what noise left of a difference
        (COPY_US / 2, COPY_US / 4, COPY_US),  # too unsteady to be believed
        (
            COPY_US / 16,
            0.0,
            COPY_US,
        ),  # too short: one of the two times that it was a difference of was disturbed
    ],
)
def test_a_timing_taken_again_counts_where_it_is_better(
    timer: NodeTimer, imagined, stored_us: float, spread_us: float, expected_us: float
) -> None:
    imagined()
    stored = Timing(median_us=stored_us, spread_us=spread_us, repeats=1)
    timer.store.add(timer.key(matmul(8)), stored)
    again = replace(timer, again_before="9999-12-31T00:00:00+00:00")
    assert again.time(matmul(8)).median_us == pytest.approx(expected_us)
    assert timer.find(matmul(8)) == again.find(matmul(8))
    assert timer.find(matmul(8)).median_us == pytest.approx(expected_us)


def test_a_timing_from_the_moment_on_is_not_taken_again(timer: NodeTimer, imagined) -> None:
    built = imagined()
    again = replace(timer, again_before=now())
    assert again.time(matmul(8)) == again.time(matmul(8))
    assert len(built) == 2  # one pair of models: the timing is of the same second or later


def test_names_for_bytes_are_timed_as_one(timer: NodeTimer) -> None:
    reshape = node("Flatten", (4, 5, 6), output=(4, 30))
    assert timed_as(reshape) is VIEW_NODE
    assert timed_as(matmul(8)).key == matmul(8).key
    assert timer.time(reshape) == timer.find(VIEW_NODE)
    assert len(timer.store) == 1


def test_one_failure_leaves_the_rest(timer: NodeTimer) -> None:
    product = matmul(8)
    bf16 = lowered(product, ports_of(product, Precision.BF16), Precision.BF16)
    assert bf16 is not None
    seen: list[Measured] = []
    measured = list(time_all([matmul(8), bf16, matmul(16)], timer, seen.append))
    assert [m.timing is None for m in measured] == [False, True, False]
    assert "MatMul" in measured[1].failure
    assert seen == measured
    assert len(timer.store) == 2  # a failure is not kept: it may pass
    with pytest.raises(UnsupportedModelError):
        timer.time(bf16)


def test_a_view_is_timed_inside_a_graph(timer: NodeTimer, imagined) -> None:
    built = imagined(copy_us=0.5)
    assert timer.time(VIEW_NODE).median_us == pytest.approx(0.5)
    assert built[1] - built[0] > 100  # a copy costs too little to tell from what a call costs


def test_each_node_of_a_chain_takes_the_output_of_the_one_before() -> None:
    model = chain_model(VIEW_NODE, 3)
    onnx.checker.check_model(model, full_check=True)
    nodes = list(model.graph.node)
    assert [a.output[0] for a in nodes[:-1]] == [b.input[0] for b in nodes[1:]]
    load(model, machine("cpu", threads=1)).placed(synthesize(one_node_view(VIEW_NODE)))()
