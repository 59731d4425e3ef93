"""A step is exported in a portable form, and what plans or runs it chooses the form for its target."""

from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_torch import TOLERANCE, weighted_sum, worst_deviation
from torch import nn

from campo_onnx.checking.check import check
from campo_onnx.checking.policy import Policy
from campo_onnx.checking.verdict import Status
from campo_onnx.export.torch import export_training_step
from campo_onnx.export.torch.state_dict import first_state
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.portable import is_portable
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import as_it_runs
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.targets.target import target
from campo_onnx.training.session import TrainingSession

CPU = Place(target=target("cpu"))
IMAGE = (4, 8, 12, 12)


def network():
    torch.manual_seed(0)
    layers = (nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, stride=2))
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 16, 2, stride=2), nn.Conv2d(16, 8, 1, stride=2))


def exported(**options):
    return export_training_step(network(), weighted_sum, torch.ones(IMAGE), loss_scale=False, **options)


def operators(model):
    return Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_lowered_step_is_the_step_exported_for_the_target(runtime):
    place = Place(target=target("cpu", runtime))
    imported = import_model(exported())
    lowered = as_it_runs(imported, place)
    assert "convolutions" in lowered.passes
    wanted = exported(target=place.target)
    assert operators(lowered.model) == operators(wanted) != operators(imported.model)


@pytest.mark.parametrize("device", ["v100", "h200"])
def test_weight_gradients_are_chosen_for_the_gpu_that_is_planned_for(device):
    lowered = as_it_runs(import_model(exported()), Place(target=target(device)))
    assert operators(lowered.model) == operators(exported(target=device))


def test_a_portable_step_is_lowered_once():
    lowered = as_it_runs(import_model(exported()), CPU)
    assert not is_portable(lowered.model)
    assert as_it_runs(lowered, CPU) is lowered
    assert as_it_runs(import_model(lowered.model), CPU).passes == ()


def test_a_step_exported_for_a_target_stays_as_it_is():
    model = exported(target="cpu")
    assert not is_portable(model)
    assert as_it_runs(import_model(model), CPU).passes == ()


def test_only_on_request_is_another_graph_lowered():
    model = exported()
    del model.metadata_props[:]
    imported = import_model(model)
    assert as_it_runs(imported, CPU) is imported
    assert "convolutions" in as_it_runs(imported, CPU, chooses=True).passes


def test_nodes_that_no_rule_concerns_keep_their_names_and_inputs_their_types():
    imported = import_model(exported())
    lowered = as_it_runs(imported, CPU)
    names = {node.name for node in lowered.model.graph.node}
    others = [n.name for n in imported.view.nodes if n.op.op_type in ("MaxPool", "Relu", "Where", "Greater")]
    assert others
    assert names.issuperset(others)
    assert lowered.model.graph.input == imported.model.graph.input
    assert lowered.model.graph.output == imported.model.graph.output
    assert lowered.model.producer_name == imported.model.producer_name


def test_what_is_planned_is_the_graph_that_runs():
    optimized = optimize(exported(), Options(target=target("cpu"), lists=preset("campo")))
    lowered = as_it_runs(import_model(exported()), CPU)
    assert operators(optimized.model) == operators(lowered.model)
    assert optimized.imported.passes == lowered.passes


@pytest.mark.parametrize(("device", "low"), [("v100", Precision.FP16), ("zen4", Precision.BF16)])
def test_a_mixed_step_is_checked_against_the_portable_one(tmp_path, device, low):
    portable, mixed = tmp_path / "step.onnx", tmp_path / "mixed.onnx"
    exported(path=portable)
    chosen = target(device, "openvino" if low is Precision.BF16 else "onnxruntime")
    optimized = optimize(portable, Options(target=chosen, lists=preset("campo"), low=low, strategy="tf-amp"))
    assert "convolutions" in optimized.imported.passes
    assert optimized.plan.low_nodes
    export_model(optimized.model, mixed)
    verdicts = check(mixed, portable, Policy(min_speedup=0)).verdicts
    assert [v.rule for v in verdicts if v.finding.status is Status.FAILED] == []


def test_a_session_trains_a_portable_step_in_the_form_for_its_machine(monkeypatch):
    model = exported(optimizer="sgd")
    ran = []
    load = __import__("campo_onnx.training.opened", fromlist=["load"]).load

    def loading(model, *args, **settings):
        ran.append(model)
        return load(model, *args, **settings)

    monkeypatch.setattr("campo_onnx.training.opened.load", loading)
    module = network()
    session = TrainingSession(
        model, first_state(module.state_dict(), model), provider="cpu", settings={"lr": 0.1}
    )
    assert "MaxUnpool" in operators(ran[0])
    x = torch.randn(IMAGE)
    result = session.step({"input.input": x.numpy()})
    loss = weighted_sum(module(x))
    loss.backward()
    assert result.loss == pytest.approx(loss.item(), rel=TOLERANCE)
    new = session.state()
    for name, parameter in module.named_parameters():
        expected = (parameter - 0.1 * parameter.grad).detach().numpy()
        np.testing.assert_allclose(new[f"param.{name}"], expected, rtol=1e-4, atol=1e-5)


UNUSUAL = {
    "one_channel": (lambda: nn.Conv2d(1, 6, 3, padding=1), (4, 1, 9, 9)),
    "one_output": (lambda: nn.Conv2d(6, 1, 3, padding=1, bias=False), (4, 6, 9, 9)),
    "one_of_each": (lambda: nn.Conv2d(1, 1, 3, bias=False), (4, 1, 9, 9)),
    "one_image": (lambda: nn.Conv2d(6, 4, 3, stride=2), (1, 6, 10, 10)),
    "whole_image": (lambda: nn.Conv2d(6, 1, 5), (3, 6, 5, 5)),
    "unread_rows": (lambda: nn.Conv2d(6, 4, 2, stride=3, dilation=2), (3, 6, 12, 11)),
    "depthwise_one_image": (lambda: nn.Conv2d(6, 6, 3, groups=6, padding=1), (1, 6, 8, 8)),
    "depthwise": (lambda: nn.Conv2d(6, 12, 3, groups=6, stride=2, padding=1), (3, 6, 8, 8)),
    "standardized_weight": (lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(6, 1, 3)), (3, 6, 8, 8)),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_convolutions_keep_their_gradients(name):
    build, image = UNUSUAL[name]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(image[1], image[1], 1, bias=False), build(), nn.Tanh())
    assert worst_deviation(module, weighted_sum, [torch.randn(image)], []) < TOLERANCE


@pytest.mark.parametrize("window", [{}, {"stride": 1}, {"padding": 1}, {"ceil_mode": True}])
def test_gradients_of_max_pools_are_right_where_maxima_are_equal(window):
    module = nn.Sequential(nn.Conv2d(2, 3, 1), nn.MaxPool2d(2, **window))
    x = torch.randint(0, 2, (2, 2, 7 if "ceil_mode" in window else 6, 6)).float()
    assert worst_deviation(module, weighted_sum, [x], []) < TOLERANCE
