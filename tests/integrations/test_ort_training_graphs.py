"""ONNX Runtime's own training graphs as files: optimize keeps what its training runtime relies on."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto

from campo_onnx.ir.exporter import export_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.targets.target import target

DATA = Path(__file__).parent.parent / "data"
GRAPHS = sorted(DATA.rglob("*training*.onnx"))  # those in ort/ are made by the make.py there
ALL = {
    "optimal": "campo", "campo": "campo", "fine-grained": "campo", "tf-amp": "tf115", "torch-amp": "pytorch",
    "nvidia-amp": "nvidia",
}  # fmt: skip
EAGER = replace(target("v100"), launch_us=1e-6, host_us=1e-6)
# Outputs of these have no type but the one that value_info declares.
DECLARED = ("ATen", "PythonOp", "PythonOpGrad")


@pytest.fixture(scope="module", params=GRAPHS, ids=lambda path: path.stem)
def path(request) -> Path:
    return request.param


@pytest.fixture(scope="module", params=["optimal", "tf-amp"])
def mixed(request, path, dims_of, tmp_path_factory) -> Path:
    lists = "campo" if request.param == "optimal" else "tf115"
    options = Options(target=EAGER, lists=preset(lists), strategy=request.param, dims=dims_of(path))
    optimized = optimize(path, options)
    assert optimized.plan.low_nodes
    written = tmp_path_factory.mktemp("mixed") / path.name
    export_model(optimized.model, written, folder=path.parent)
    return written


def nodes(model: ModelProto, *op_types: str) -> list[NodeProto]:
    return [node for node in model.graph.node if node.op_type in op_types]


def test_all_are_here():
    assert len(GRAPHS) == 5


def test_normalizations_stand_in_the_standard_domain_before_it_had_them():
    operators = {
        (node.op_type, next(o.version for o in model.opset_import if not o.domain))
        for model in map(onnx.load, GRAPHS)
        for node in model.graph.node
        if not node.domain and node.op_type.endswith("LayerNormalization")
    }
    assert {("LayerNormalization", 14), ("SimplifiedLayerNormalization", 15)} <= operators


@pytest.mark.parametrize(("strategy", "low"), [*((name, "fp16") for name in ALL), ("fine-grained", "bf16")])
@pytest.mark.parametrize("path", [g for g in GRAPHS if g.parent.name == "ort"], ids=lambda p: p.stem)
def test_every_strategy_writes_valid_graphs(path, strategy, low, dims_of, tmp_path):
    a_device = replace(target("h200"), launch_us=1e-6, host_us=1e-6)
    options = Options(
        target=a_device,
        lists=preset(ALL[strategy]),
        strategy=strategy,
        low=Precision(low),
        dims=dims_of(path),
    )
    export_model(optimize(path, options).model, tmp_path / path.name, folder=path.parent)  # which checks it


def test_the_interface_stays(path, mixed):
    fp32, written = onnx.load(path), onnx.load(mixed)
    assert list(fp32.graph.input) == list(written.graph.input)
    assert list(fp32.graph.output) == list(written.graph.output)
    assert fp32.ir_version == written.ir_version
    assert fp32.opset_import == written.opset_import
    assert fp32.graph.name == written.graph.name


def test_the_crossing_to_the_framework_and_the_accumulation_buffers_stay(path, mixed):
    fp32, written = onnx.load(path), onnx.load(mixed)
    kinds = ("YieldOp", "InPlaceAccumulatorV2", *DECLARED)
    assert nodes(fp32, *kinds)
    assert nodes(fp32, *kinds) == nodes(written, *kinds)


def test_declared_types_stay_where_there_is_no_other_source(path, mixed):
    fp32, written = onnx.load(path), onnx.load(mixed)
    declared = {value.name: value for value in written.graph.value_info}
    before = {value.name: value for value in fp32.graph.value_info}
    outputs = [t for node in nodes(fp32, *DECLARED) for t in node.output if t in before]
    assert outputs or not nodes(fp32, *DECLARED)
    assert [declared[t] for t in outputs] == [before[t] for t in outputs]


def test_declared_types_are_true(mixed):
    """A low tensor that kept its FP32 declaration would be refused as a contradiction."""
    model = onnx.load(mixed)
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    low = {node.output[0] for node in nodes(model, "Cast") if node.attribute[0].i == TensorProto.FLOAT16}
    assert low
    assert all(types[t] == TensorProto.FLOAT16 for t in low if t in types)


LOAD = """
import sys
import torch_shim
import onnxruntime
from onnxruntime.training.ortmodule._custom_gradient_registry import CustomGradientRegistry
CustomGradientRegistry.register_all()
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
print(*(value.name for value in session.get_outputs()))
"""


@pytest.mark.usefixtures("ortmodule")
def test_the_training_build_loads_it(mixed):
    # In a process of its own: ONNX Runtime 1.19.2 does not refuse every FP16 node it has no kernel
    # for, MaxPoolGrad is one that it dies of.
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOAD, str(mixed)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    outputs = [value.name for value in onnx.load(mixed).graph.output]
    assert answer.stdout.splitlines()[-1].split() == outputs
