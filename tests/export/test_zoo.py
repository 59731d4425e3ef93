"""The paper's six models, exported: shallow variants against torch eager, and full sizes."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch

from benchmarks import export as jobs
from benchmarks.zoo import export as zoo
from campo_onnx.export.torch import Adam, AdamW, Momentum
from campo_onnx.ir.importer import import_model
from campo_onnx.lowering.convolutions import weight_gradient
from tests.export import against_torch
from tests.export.against_torch import TOLERANCE, deviation, feeds_of, replayed, run, with_masks

MODELS = {
    "alexnet": 16, "vgg16": 12, "resnet50": 29, "inception3": 115,
    "dcgan_generator": 13, "dcgan_discriminator": 11, "bert_large": 39,
}  # fmt: skip
"""How many parameters of each shallow variant are trained."""

SEEDS = {"inception3": (2, 4, 3)}
"""Seeds of which one must agree. Where the input of a rectifier is nothing but rounding error, its sign
differs between libraries and processors, and the gradient with it. A wrong translation fails every seed."""

LR = 0.05
# Adam divides by the root of the second moment: beside an epsilon of 1e-8, the noise of a gradient that is
# zero but for rounding becomes a step of full size, in torch as here, and says nothing about either.
EPS = 0.1
OPTIMIZERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "momentum": (Momentum(), lambda ps: torch.optim.SGD(ps, LR, momentum=0.9)),
    "adam": (Adam(eps=EPS), lambda ps: torch.optim.Adam(ps, LR, eps=EPS)),
    "adamw": (AdamW(eps=EPS), lambda ps: torch.optim.AdamW(ps, LR, eps=EPS)),
}


def shallow(name: str, seed: int) -> tuple[Any, Any, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return zoo.ZOO[name].shallow()


def gradients_deviate(name: str, seed: int) -> float:
    """Compare the loss, every gradient and every buffer."""
    module, inputs, targets = shallow(name, seed)
    return against_torch.worst_deviation(module, zoo.ZOO[name].loss, inputs, targets)


def parameters_deviate(name: str, seed: int) -> dict[str, float]:
    """Compare every parameter after one update."""
    (written, eager), (module, inputs, targets) = OPTIMIZERS[zoo.ZOO[name].optimizer], shallow(name, seed)
    loss = zoo.ZOO[name].loss
    model = against_torch.export_training_step(
        module, loss, inputs, targets,
        optimizer=written, loss_scale=False,
    )  # fmt: skip
    scalars = {"lr": np.float32(LR), "step": np.int64(0)}
    actual = run(with_masks(model), feeds_of(model, module, [*inputs, *targets], **scalars))
    stepping = eager([*module.parameters()])
    with replayed(actual, model):
        value = loss(module(*inputs), *targets)
    value.backward()
    stepping.step()
    expected = {f"new.{n}": p.detach().numpy() for n, p in module.named_parameters() if p.grad is not None}
    assert {name for name in actual if name.startswith("new.")} == set(expected)
    largest = max(np.abs(values).max() for values in expected.values())
    return {
        n: deviation(actual[n], values)
        if np.abs(values).max() > TOLERANCE * largest
        else float(np.abs(actual[n] - values).max() / largest)
        for n, values in expected.items()
    }


def test_the_zoo_holds_the_papers_models() -> None:
    assert [*zoo.ZOO] == [*MODELS]


@pytest.mark.parametrize("name", MODELS)
def test_every_gradient_is_eagers(name: str) -> None:
    assert any(gradients_deviate(name, seed) < TOLERANCE for seed in SEEDS.get(name, (0,)))


@pytest.mark.parametrize("name", MODELS)
def test_every_new_parameter_is_eagers(name: str) -> None:
    def is_eagers(seed: int) -> bool:
        deviations = parameters_deviate(name, seed)
        assert len(deviations) == MODELS[name]
        return max(deviations.values()) < TOLERANCE

    assert any(is_eagers(seed) for seed in SEEDS.get(name, (0,)))


def test_a_model_at_full_size_needs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "vgg16.onnx"
    model = zoo.export("vgg16", 256, optimizer="momentum", path=path)
    parameters = [v.type.tensor_type.shape.dim for v in model.graph.input if v.name.startswith("param.")]
    assert sum(math.prod(d.dim_value for d in dims) for dims in parameters) == 138_357_544
    assert path.stat().st_size < 1_000_000


def test_torchs_own_exporter_is_given_the_same_step() -> None:
    record = jobs.by_torch_onnx("alexnet")
    assert record["nodes"] or record["refused"].startswith("aten.")


@pytest.mark.parametrize(
    ("form", "kind"), [("conv", jobs.CONVOLUTION), ("matmul", jobs.PRODUCT), ("images", jobs.IMAGES)]
)
def test_the_form_of_a_weight_gradient_is_seen_in_the_file(
    form: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_gradient, "cheapest", lambda g, forms, values, device: form)
    target = "v100" if form != "conv" else None
    step = zoo.export("dcgan_discriminator", 8, optimizer=None, target=target, unscale=False)
    counts = jobs.forms("dcgan_discriminator", import_model(step).view)
    # Four layers with strides and one without, each run on real and on made-up images.
    assert counts == {"4 x 4": {kind: 2}, "4 x 4, stride 2": {kind: 8}}


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
    exporting = against_torch.export_training_step
    monkeypatch.setattr(
        against_torch, "export_training_step", lambda *a, **k: wrong(exporting(*a, **k), kind)
    )
    if kind == "new.":
        assert max(parameters_deviate("resnet50", seed=0).values()) > 5e-5
    else:
        assert gradients_deviate("resnet50", seed=0) > 5e-5
