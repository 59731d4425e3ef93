"""Timing single nodes, on the CPU provider."""

from dataclasses import replace

import pytest
from onnx import TensorProto

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.measure.node_timer import VIEW_NODE, Bench, Measured, time_all, timed_as
from campo_onnx.measure.store import Store
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature, make_signature
from campo_onnx.runtime.providers import machine
from campo_onnx.runtime.timing import Effort, Timing

F = int(TensorProto.FLOAT)
QUICK = Effort(warmup=1, repeats=9, least=3, budget_s=0.1)


def node(op_type: str, *shapes: tuple[int, ...], output: tuple[int, ...]) -> Signature:
    return make_signature(OpKey("", op_type), [(F, shape) for shape in shapes], [(F, output)])


def matmul(n: int) -> Signature:
    return node("MatMul", (n, n), (n, n), output=(n, n))


@pytest.fixture
def bench() -> Bench:
    return Bench(machine=machine("cpu", threads=1), store=Store(), effort=QUICK)


def test_time_grows_with_the_work(bench: Bench) -> None:
    small, large = bench.time(matmul(64)).median_us, bench.time(matmul(256)).median_us
    assert 0 < small < large / 5  # 64 times the FLOPs


def test_low_precision_costs_its_casts_on_a_cpu(bench: Bench) -> None:
    add = node("Add", (1 << 16,), (1 << 16,), output=(1 << 16,))
    low = lowered(add, ports_of(add, Precision.FP16), Precision.FP16)
    assert low is not None
    assert bench.time(low).median_us > bench.time(add).median_us


def test_a_timing_is_taken_once(bench: Bench) -> None:
    made_up = Timing(median_us=123456.0, spread_us=0.0, repeats=1)
    bench.store.add(bench.key(matmul(32)), made_up)
    assert bench.time(matmul(32)) == made_up
    other = replace(bench, machine=replace(bench.machine, ort="0.0"))
    assert other.find(matmul(32)) is None


def test_names_for_bytes_are_timed_as_one(bench: Bench) -> None:
    reshape = node("Flatten", (4, 5, 6), output=(4, 30))
    assert timed_as(reshape) is VIEW_NODE
    assert timed_as(matmul(8)).key == matmul(8).key
    assert bench.time(reshape).median_us < 100


def test_one_failure_leaves_the_rest(bench: Bench) -> None:
    product = matmul(8)
    bf16 = lowered(product, ports_of(product, Precision.BF16), Precision.BF16)
    assert bf16 is not None
    seen: list[Measured] = []
    measured = list(time_all([matmul(8), bf16, matmul(16)], bench, seen.append))
    assert [m.timing is None for m in measured] == [False, True, False]
    assert "MatMul" in measured[1].failure
    assert seen == measured
    assert len(bench.store) == 2  # a failure is not kept: it may pass
    with pytest.raises(UnsupportedModelError):
        bench.time(bf16)
