"""The paper's six models, exported: shallow variants against torch eager, and full sizes."""

import math
from pathlib import Path

import onnx
import pytest

pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from benchmarks import export as jobs
from benchmarks.zoo import eager
from benchmarks.zoo import export as zoo

TOLERANCE = 1e-5
MODELS = {
    "alexnet": 16, "vgg16": 12, "resnet50": 29, "inception3": 115,
    "dcgan_generator": 13, "dcgan_discriminator": 11, "bert_large": 39,
}  # fmt: skip
"""How many parameters of each shallow variant are trained."""


def test_the_zoo_holds_the_papers_models() -> None:
    assert [*zoo.ZOO] == [*MODELS]


@pytest.mark.parametrize("name", MODELS)
def test_every_gradient_is_eagers(name: str) -> None:
    found = eager.compare(zoo.ZOO[name], weight_gradient="matmul")
    assert found.tensors["grad"] == MODELS[name]
    assert max(found.worst.values()) < TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_every_new_parameter_is_eagers(name: str) -> None:
    found = eager.compare(zoo.ZOO[name], optimizer=zoo.ZOO[name].optimizer, weight_gradient="conv")
    assert found.tensors["new"] == MODELS[name]
    assert max(found.worst.values()) < TOLERANCE


def test_running_statistics_are_compared() -> None:
    assert eager.compare(zoo.ZOO["resnet50"]).tensors["buf_out"] == 3 * 9  # mean, variance, count


def test_a_model_at_full_size_needs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "vgg16.onnx"
    model = zoo.export("vgg16", 256, optimizer="momentum", path=path)
    parameters = [v.type.tensor_type.shape.dim for v in model.graph.input if v.name.startswith("param.")]
    assert sum(math.prod(d.dim_value for d in dims) for dims in parameters) == 138_357_544
    assert path.stat().st_size < 1_000_000


def test_torchs_own_exporter_is_given_the_same_step() -> None:
    job = jobs.Job(kind="stock", model="alexnet", batch=2)
    found = jobs.by_torch_onnx(zoo.ZOO["alexnet"], job)
    assert found["nodes"] or found["refused"].startswith("aten.")


def wrong(model: onnx.ModelProto, kind: str) -> onnx.ModelProto:
    """Scale the first output of a kind by 1.0001."""
    output = next(value for value in model.graph.output if value.name.startswith(kind))
    maker = next(node for node in model.graph.node if output.name in node.output)
    maker.output[[*maker.output].index(output.name)] = "before"
    model.graph.initializer.append(onnx.helper.make_tensor("factor", onnx.TensorProto.FLOAT, [], [1.0001]))
    model.graph.node.append(onnx.helper.make_node("Mul", ["before", "factor"], [output.name]))
    return model


@pytest.mark.parametrize("kind", ["loss", "grad.", "new.", "buf_out."])
def test_a_comparison_can_fail(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exporting = eager.export_training_step
    monkeypatch.setattr(eager, "export_training_step", lambda *a, **k: wrong(exporting(*a, **k), kind))
    found = eager.compare(zoo.ZOO["resnet50"], optimizer="momentum" if kind == "new." else None)
    assert found.worst[kind.removesuffix(".")] > 5e-5
