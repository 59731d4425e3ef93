"""Profiles on CUDA, with a kernel trace that is made up: taken, checked, refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from campo_onnx.errors import DeviceUnavailableError, UnsupportedModelError
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.measure import profiler as profiling
from campo_onnx.measure.counters import COUNTERS, Counted
from campo_onnx.measure.node_timer import LAUNCH_NODE, NodeTimer
from campo_onnx.measure.one_node import standalone
from campo_onnx.measure.profiler import Signatures, shared_out, take_profile, trace_kernels
from campo_onnx.measure.store import Store
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.api import NodeTime, StepTimes
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.onnxruntime.kernel_trace import Joined
from campo_onnx.runtime.timing import Timing
from campo_onnx.targets.target import target

DATA = Path(__file__).parent.parent / "data"
GPU = Machine(
    provider="cuda", device="NVIDIA H200", driver="580", cuda="13.0", ort="1.31.1", tf32=True, threads=0
)
LAUNCH_US = 4.0


class Imagined(NodeTimer):
    """Every node takes 100 us alone, a launch 4; Gemm does not run alone."""

    def time(self, signature: Signature) -> Timing:
        if signature.op.op_type == "Gemm":
            raise UnsupportedModelError("no Gemm")
        us = LAUNCH_US if signature is LAUNCH_NODE else 100.0
        return Timing(median_us=us, spread_us=0.0, repeats=1)


@pytest.fixture(scope="module")
def imported() -> Imported:
    return import_model(DATA / "mlp.onnx")


@pytest.fixture(scope="module")
def signatures(imported: Imported) -> Signatures:
    return {node.name: standalone(imported.view, node.name) for node in imported.view.nodes}


@pytest.fixture
def timer() -> NodeTimer:
    return Imagined(machine=GPU, store=Store())


def joined(times_us: Mapping[str, float]) -> Joined:
    return Joined(
        nodes_us={name: (us, us) for name, us in times_us.items()},
        kernels=dict.fromkeys(times_us, (("k",), ("k",))),
        busy_us=(sum(times_us.values()),) * 2,
        unlaunched=(),
        outside=(),
    )


def traced(imported: Imported, timer: NodeTimer, signatures: Signatures, kernels: Joined) -> profiling.Traced:
    return trace_kernels(imported, {}, timer, signatures, 500.0, steps=2, take=lambda *_, **__: kernels)


def names(imported: Imported, op_type: str) -> list[str]:
    return [node.name for node in imported.view.nodes if node.op.op_type == op_type]


def test_kernels_shorter_than_a_launch_are_left_to_be_timed_alone(
    imported: Imported, timer: NodeTimer, signatures: Signatures
) -> None:
    product, relu = names(imported, "MatMul")[0], names(imported, "Relu")[0]
    # What the runtime put in besides is in the trace and in no row.
    trace = traced(imported, timer, signatures, joined({product: 99.0, "Memcpy": 100.0}))
    assert trace.refusal == ""
    assert set(trace.nodes) == {product, "Memcpy"}
    assert trace.accounted == 1.0
    trace = traced(imported, timer, signatures, joined({product: 99.0, relu: 3.9}))
    assert "in the trace" in trace.refusal  # a node timed alone disagrees
    assert trace.nodes == {}
    gemm = names(imported, "Gemm")[0]
    trace = traced(imported, timer, signatures, joined({gemm: 99.0, product: 101.0}))
    assert trace.refusal == ""  # what does not run alone is not compared


def test_short_nodes(imported: Imported, signatures: Signatures) -> None:
    class Short(Imagined):
        def time(self, signature: Signature) -> Timing:
            us = LAUNCH_US if signature is LAUNCH_NODE else 2.0
            return Timing(median_us=us, spread_us=0.0, repeats=1)

    product, relu = names(imported, "MatMul")[0], names(imported, "Relu")[0]
    trace = traced(imported, Short(machine=GPU, store=Store()), signatures, joined({product: 2.1, relu: 2.1}))
    assert trace.refusal == ""
    assert trace.nodes == {}


def test_a_trace_that_cannot_be_taken_says_why(
    imported: Imported, timer: NodeTimer, signatures: Signatures
) -> None:
    def refuse(*_: Any, **__: Any) -> Joined:
        raise DeviceUnavailableError("kernels cannot be traced", why="no PyTorch")

    trace = trace_kernels(imported, {}, timer, signatures, 500.0, steps=2, take=refuse)
    assert trace.refusal == "kernels cannot be traced: no PyTorch. Nodes were timed alone."
    assert trace.step_us == 500.0


@pytest.mark.parametrize("wanted", [True, False])
def test_the_profile_tells_how_each_node_was_measured(
    imported: Imported, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    timed: list[str] = []

    class Watched(Imagined):
        def time(self, signature: Signature) -> Timing:
            timed.append(signature.key)
            return super().time(signature)

    timer = Watched(machine=GPU, store=Store())
    product = names(imported, "MatMul")[0]
    monkeypatch.setattr(profiling, "_step_us", lambda *_: 900.0)
    monkeypatch.setattr(
        profiling,
        "trace_kernels",
        lambda *_, **__: traced(imported, timer, {product: None}, joined({product: 101.0})),
    )
    key = standalone(imported.view, product)
    assert key is not None
    counted = Counted(by_key={key.key: {COUNTERS[0]: 7.0}}, refusal="ncu grew tired")
    monkeypatch.setattr(profiling, "counters_of", lambda *_: counted)
    profile = take_profile(imported, {}, timer, target("h200"), steps=2, kernel_trace=wanted, counters=wanted)
    assert (key.key in timed) is not wanted  # no other node is like it
    how = dict(profile.table.select("node", "measured").iter_rows())
    assert how[product] == ("kernel trace" if wanted else "one-node")
    assert how[names(imported, "Relu")[0]] == "one-node"
    assert how[names(imported, "Gemm")[0]] == "not measured"
    assert profile.accounted == (1.0 if wanted else None)
    assert profile.notes == (("ncu grew tired",) if wanted else ())
    assert profile.step_us == (500.0 if wanted else 900.0)
    assert profile.fp32_us()[product] == (101.0 if wanted else 100.0)
    twins = {n for n, counters in profile.counters().items() if counters == {COUNTERS[0]: 7.0}}
    assert (product in twins) is wanted


def executed(*kernels: tuple[float, tuple[str, ...]]) -> StepTimes:
    """A trace in which kernels compute several nodes."""
    nodes = tuple(
        NodeTime(nodes=nodes, kernel="k", precision=None, time=Timing(median_us=us, spread_us=0.0, repeats=3))
        for us, nodes in kernels
    )
    return StepTimes(nodes=nodes, step=Timing(median_us=1000.0, spread_us=0.0, repeats=3), accounted=0.9)


def test_the_time_of_a_kernel_is_shared_out_among_its_nodes(imported: Imported) -> None:
    product, relu = names(imported, "MatMul")[0], names(imported, "Relu")[0]
    shared = shared_out(executed((90.0, (relu, product))), 90.0, imported.view, target("cpu"))
    assert shared[product].median_us + shared[relu].median_us == pytest.approx(90.0)
    assert shared[product].median_us > shared[relu].median_us > 0
    assert shared.keys() == set(imported.view.node)
    assert sum(timing.median_us for timing in shared.values()) == pytest.approx(90.0)


@pytest.mark.parametrize("step_us", [80.0, 110.0])
def test_shared_times_add_up_to_the_step(imported: Imported, step_us: float) -> None:
    product, relu = names(imported, "MatMul")[0], names(imported, "Relu")[0]
    times = executed((60.0, (product,)), (30.0, (product,)), (10.0, (relu,)))
    shared = shared_out(times, step_us, imported.view, target("cpu"))
    lost = shared_out(
        executed((60.0, (product,)), (40.0, ("unheard of",))), step_us, imported.view, target("cpu")
    )
    assert lost[product].median_us == pytest.approx(step_us)
    assert sum(timing.median_us for timing in shared.values()) == pytest.approx(step_us)
    # What is left over, to start kernels, is shared out evenly; a trace that takes longer is shortened.
    expected_us = 90.0 * step_us / 100.0 if step_us < 100.0 else 90.0 + 2 * 10.0 / 3
    assert shared[product].median_us == pytest.approx(expected_us)
