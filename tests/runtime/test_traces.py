"""ONNX Runtime's profile, read back to nodes."""

from pathlib import Path

import pytest

from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.api import LoadSettings, StepTimes
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.onnxruntime.traces import read_events
from campo_onnx.runtime.registry import load, machine

DATA = Path(__file__).parent.parent / "data"


def node(name: str, us: int) -> dict[str, object]:
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": us}


def step(us: int, *inner: int) -> list[dict[str, object]]:
    executed = [{"cat": "Session", "name": "SequentialExecutor::Execute", "dur": t} for t in (*inner, us)]
    return [*executed, {"cat": "Session", "name": "model_run", "dur": us + 5}]


def nodes_us(times: StepTimes) -> float:
    return sum(node.time.median_us for node in times.nodes)


def test_first_steps_do_not_count() -> None:
    events = [node("a", 900), *step(1000), node("a", 10), *step(20)]
    read = read_events(events, skip=1)
    assert [(node.nodes, node.time.median_us, node.time.repeats) for node in read.nodes] == [(("a",), 10, 1)]
    assert read.step.median_us == 20


def test_the_faster_half_of_the_steps_counts_for_nodes_and_step_alike() -> None:
    slow = [node("a", 100), node("b", 900), *step(1010)]
    fast = [node("a", 150), node("b", 10), *step(170)]
    read = read_events([*slow, *fast, *slow, *fast])
    assert read.step.median_us == 170
    assert nodes_us(read) == 160
    assert read.accounted == pytest.approx(160 / 170)


def test_a_step_shorter_than_a_microsecond_is_read() -> None:
    read = read_events([node("a", 0), *step(0)])
    assert (read.step.median_us, nodes_us(read), read.accounted) == (0, 0, 0)


def test_bodies_of_control_flow_are_no_steps() -> None:
    read = read_events([node("loop", 50), *step(60, 7, 8)])
    assert read.step.median_us == 60
    assert read.step.repeats == 1


@pytest.mark.parametrize("name", ["mlp", "alexnet_like", "bert2_mlm_sdpa"])
def test_every_node_of_a_training_step_is_timed(name: str) -> None:
    imported = import_model(DATA / f"{name}.onnx")
    steps = []
    program = load(imported.model, machine("cpu", threads=1), settings=LoadSettings(traces=True))
    feeds = synthesize(imported.view)
    times = program.node_times(feeds, repeats=3, warmup=1, on_step=lambda: steps.append(1))
    assert len(steps) == 4
    computed = {n.name for n in imported.view.nodes if n.op.op_type != "Constant"}
    assert {name for node in times.nodes for name in node.nodes} == computed
    assert nodes_us(times) <= times.step.median_us
