"""Graphs with everything padded that can be, and without: what the tests of padding compare."""

from dataclasses import dataclass, replace

import numpy as np
import onnx

from campo_onnx.emulation.numerics import emulate, seeded
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.facts import work_of
from campo_onnx.ops.multiples import Multiples
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.runtime.chunked_run import run as run_once
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.target import target

FREE_LAUNCH = replace(target("v100"), launch_us=1e-6, host_us=1e-6)

# Tensor cores cost nothing and neither does memory: whatever can be padded is.
GENEROUS = replace(
    FREE_LAUNCH,
    hardware=replace(
        FREE_LAUNCH.hardware,
        fp32_flops_per_s=1e6,
        fp16_tensor_flops_per_s=1e30,
        memory_bandwidth_bytes_per_s=1e30,
    ),
)

HERE = machine("cpu", 1)

WEIGHT = "<float[8,2] w = {1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6}>"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The same precisions, with pads and without."""

    plan: Plan
    model: onnx.ModelProto
    unpadded: onnx.ModelProto


def text_of(model):
    """Nodes as ``outputs = op(inputs)``, in order, without Casts."""
    nodes = [node for node in model.graph.node if node.op_type != "Cast"]
    return [f"{', '.join(n.output)} = {n.op_type}({', '.join(n.input)})" for n in nodes]


def initializers(model):
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def feeds_of(model, seed=0):
    """Small integers, whose sums every order of adding gets right."""
    generator = np.random.default_rng(seed)
    constants = {tensor.name for tensor in model.graph.initializer}
    return {
        value.name: generator.integers(
            -3, 4, [dim.dim_value or 5 for dim in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in model.graph.input
        if value.name not in constants
    }


def emulated(model, feeds):
    return run_once(seeded(emulate(model)), feeds, HERE)


def assert_same(pair, feeds=None):
    feeds = feeds or feeds_of(pair.model)
    expected = emulated(pair.unpadded, feeds)
    for name, value in emulated(pair.model, feeds).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def assert_valid(model, run):
    onnx.checker.check_model(model, full_check=True)
    run(model)


def assert_fits(model):
    view = import_model(model).view
    for node in view.nodes:
        assert all(
            gemm.is_aligned(Multiples.of_all(8)) for gemm in work_of(view.signature(node.name)).gemms
        ), node.name
