"""The datasheet estimate, against numbers done by hand and the physics it must keep."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from onnx import TensorProto

from campo_onnx.costs import estimated
from campo_onnx.costs.estimated import estimate
from campo_onnx.costs.evidence import CostSource
from campo_onnx.costs.table import CostTable, NodeCost
from campo_onnx.errors import ProfileError
from campo_onnx.hardware.datasheet import devices
from campo_onnx.hardware.hardware import Efficiency, Hardware
from campo_onnx.ir.view import GraphView, OpNode, TensorInfo, TensorKind
from campo_onnx.ops.gemms import GemmShape
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.refusal import Refused
from campo_onnx.ops.signature import Signature
from campo_onnx.targets.cast_model import CastModel
from campo_onnx.targets.roofline import Estimate, gemm_rate, node_time
from campo_onnx.targets.target import Target, target

# 1 MB/us reached of 2, 8 TFLOP/s reached of 10, 50 reached of 100: easy numbers.
HARDWARE = Hardware(
    name="gpu",
    title="A GPU",
    processor="cuda",
    compute_capability=(7, 0),
    sm_count=10,
    l2_bytes=1 << 20,
    memory_bandwidth_bytes_per_s=2e12,
    fp32_flops_per_s=10e12,
    fp16_flops_per_s=20e12,
    fp16_tensor_flops_per_s=100e12,
    efficiency=Efficiency(bandwidth=0.5, cuda_cores=0.8, tensor_cores=0.5, unaligned=0.0),
    source="made up",
)
GPU = Target.of(HARDWARE)
ALL = Ports(low_inputs=frozenset({0, 1}), low_outputs=frozenset({0}))
UNARY = Ports(low_inputs=frozenset({0}), low_outputs=frozenset({0}))


def on_gpu(**changes: Any) -> Target:
    return Target.of(replace(HARDWARE, **changes))


def graph(*nodes: tuple[str, list[tuple[int, ...]], tuple[int, ...]]) -> GraphView:
    """Unconnected nodes n0, n1, …: label, input shapes, output shape."""
    op_nodes: list[OpNode] = []
    shapes: dict[str, tuple[int, ...]] = {}
    for number, (label, inputs, output) in enumerate(nodes):
        names = [f"n{number}x{i}" for i in range(len(inputs))]
        shapes |= dict(zip(names, inputs, strict=True)) | {f"n{number}y": output}
        op_nodes.append(
            OpNode(name=f"n{number}", op=OpKey.parse(label), inputs=tuple(names), outputs=(f"n{number}y",))
        )
    tensors = {
        name: TensorInfo(name=name, dtype=TensorProto.FLOAT, shape=shape, kind=TensorKind.ACTIVATION)
        for name, shape in shapes.items()
    }
    return GraphView(nodes=tuple(op_nodes), tensors=tensors, inputs=(), outputs=(), opset={"": 20})


def costs(
    view: GraphView, ports: Ports, on: Target = GPU, precision: Precision = Precision.FP16
) -> CostTable:
    table: Mapping[str, Ports] = {node.name: ports for node in view.nodes}
    return estimate(view, table, on, precision)


def test_memory_bound_node_costs_its_bytes() -> None:
    cost = costs(graph(("Relu", [(1_000_000,)], (1_000_000,))), UNARY).nodes["n0"]
    assert cost.fp32_us == pytest.approx(8 + 5)
    assert cost.low_us == pytest.approx(4 + 5)
    assert not cost.on_tensor_cores
    assert cost.source == "datasheet"


def test_compute_bound_product_costs_its_flops() -> None:
    n = 1024
    cost = costs(graph(("MatMul", [(n, n), (n, n)], (n, n))), ALL).nodes["n0"]
    assert cost.fp32_us == pytest.approx(2 * n**3 / 8e6 + 5)
    assert cost.low_us == pytest.approx(2 * n**3 / 50e6 + 5)
    assert cost.on_tensor_cores


def test_unaligned_product_stays_on_cuda_cores_before_ampere() -> None:
    view = graph(("MatMul", [(1024, 1023), (1023, 1024)], (1024, 1024)))
    old = costs(view, ALL).nodes["n0"]
    assert not old.on_tensor_cores
    assert old.low_us == pytest.approx(old.fp32_us)  # FP32 accumulation: the FP32 rate
    newer = on_gpu(efficiency=replace(HARDWARE.efficiency, unaligned=0.5))
    new = costs(view, ALL, newer).nodes["n0"]
    assert new.on_tensor_cores
    assert new.low_us - 5 == pytest.approx(2 * 1024 * 1024 * 1023 / 25e6)


def test_tf32_speeds_up_fp32_where_it_is_the_default() -> None:
    with_tf32 = on_gpu(compute_capability=(8, 0), tf32_flops_per_s=50e12)
    without = Target.of(replace(with_tf32.hardware, processor="intel_gpu", compute_capability=None))
    view = graph(("MatMul", [(1024, 1024), (1024, 1024)], (1024, 1024)))
    assert costs(view, ALL, without).fp32_us - without.launch_us == pytest.approx(
        costs(view, ALL).fp32_us - 5
    )
    assert costs(view, ALL, with_tf32).fp32_us == pytest.approx(2 * 1024**3 / 25e6 + 5)
    multiple_of_4 = GemmShape(m=1024, n=1020, k=1024)
    assert gemm_rate(multiple_of_4, with_tf32, Precision.FP32) == (25e12, True)
    assert gemm_rate(multiple_of_4, with_tf32, Precision.FP16) == (8e12, False)


def test_steps_of_a_recurrent_layer_are_launches() -> None:
    view = graph(("RNN", [(20, 1, 8), (1, 8, 8), (1, 8, 8)], (20, 1, 1, 8)))
    assert costs(view, ALL).nodes["n0"].fp32_us >= 21 * 5


def test_host_nodes_and_constants() -> None:
    view = graph(("Reshape", [(9,), (1,)], (9,)), ("Shape", [(9,)], (1,)), ("Constant", [], (9,)))
    times_us = [(c.fp32_us, c.low_us) for c in costs(view, Ports()).nodes.values()]
    assert times_us == [(1.0, 1.0), (1.0, 1.0), (0.0, 0.0)]


def test_refused_node_gains_nothing() -> None:
    view = graph(("MatMul", [(1024, 1024), (1024, 1024)], (1024, 1024)))
    cost = costs(view, replace(ALL, refusal=Refused.NO_SCHEMA.of())).nodes["n0"]
    assert cost.gain_us == 0
    assert not cost.on_tensor_cores


def test_cast_model_reads_four_bytes_and_writes_two() -> None:
    cast = costs(graph(), Ports()).cast
    assert cast.cast_us(1_000_000) == pytest.approx(6 + 5)


def test_without_fp16_arithmetic_casts_surround_the_kernel() -> None:
    view = graph(("Add", [(1000,), (1000,)], (1000,)))
    table = costs(view, ALL, target("cpu"))
    cost = table.nodes["n0"]
    assert cost.low_us == pytest.approx(cost.fp32_us + 3 * table.cast.cast_us(1000))
    assert cost.gain_us < 0


def test_bf16_before_ampere_does_not_pay() -> None:
    view = graph(("MatMul", [(1024, 1024), (1024, 1024)], (1024, 1024)))
    assert costs(view, ALL, target("v100"), Precision.BF16).nodes["n0"].gain_us < 0
    assert costs(view, ALL, target("a100"), Precision.BF16).nodes["n0"].gain_us > 0


def test_bf16_elementwise_computes_in_fp32() -> None:
    slow_memory = on_gpu(
        compute_capability=(8, 0),
        bf16_tensor_flops_per_s=100e12,
        fp32_flops_per_s=1e9,
        fp16_flops_per_s=2e9,
    )
    view = graph(("Exp", [(1_000_000,)], (1_000_000,)))
    fp16 = costs(view, UNARY, slow_memory, Precision.FP16).nodes["n0"]
    bf16 = costs(view, UNARY, slow_memory, Precision.BF16).nodes["n0"]
    assert bf16.low_us == pytest.approx(bf16.fp32_us)
    assert fp16.low_us < bf16.low_us


@pytest.mark.parametrize("name", [d.name for d in devices().values() if d.is_gpu])
def test_every_gpu_prefers_fp16_for_a_large_product_and_not_for_a_tiny_one(name: str) -> None:
    n = 4096
    view = graph(("MatMul", [(n, n), (n, n)], (n, n)), ("Add", [(64, 8), (8,)], (64, 8)))
    table = costs(view, ALL, target(name))
    large, tiny = table.nodes["n0"], table.nodes["n1"]
    assert large.on_tensor_cores
    assert large.gain_us > 3 * table.cast.cast_us(n * n)
    assert tiny.gain_us < table.cast.cast_us(8)


def test_nodes_that_are_alike_are_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Signature] = []

    def counting(signature: Signature, *arguments: Any) -> Estimate:
        asked.append(signature)
        return node_time(signature, *arguments)

    monkeypatch.setattr(estimated, "node_time", counting)
    square: tuple[int, ...] = (64, 64)
    table = costs(graph(*[("MatMul", [square, square], square)] * 5000), ALL)
    assert len(table.nodes) == 5000
    assert len(asked) == 2  # in FP32, and low
    assert len(table.nodes) == 5000


def test_times_that_no_device_takes():
    table = CostTable(target=GPU, source=CostSource.MODEL, nodes={}, cast=CastModel(r_us=1e-5, c_i_us=1.0))
    slow = NodeCost(node="n", fp32_us=1e308, low_us=1.0, on_tensor_cores=False, source=CostSource.MODEL)
    with pytest.raises(ProfileError, match=r"the node 'n' would take 1e\+308 us on gpu: no device is"):
        replace(table, nodes={"n": slow})
    with pytest.raises(ProfileError, match="a Cast would take"):
        replace(table, cast=CastModel(r_us=1e308, c_i_us=1.0))
    assert replace(table, cast=CastModel(r_us=math.inf, c_i_us=1.0)).cast.r_us == math.inf
