"""ORTModule where planning fails, or is asked for what it cannot: the original trains on, or one message."""

import runpy
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from ortmodule_steps import casts, error, gradients, manager_of, running

from campo_onnx.errors import DeviceUnavailableError, UsageError
from campo_onnx.integrations import ortmodule as integration
from campo_onnx.integrations.ortmodule import attach
from campo_onnx.ops.precision import Precision
from campo_onnx.targets.target import target

ROOT = Path(__file__).parent.parent.parent
EAGER = replace(target("v100"), launch_us=1e-6, host_us=1e-6)  # small networks are worth rewriting

# PyTorch's and ONNX Runtime's own, on the first export.
pytestmark = pytest.mark.filterwarnings("ignore:::(torch|onnxruntime|onnxscript|copyreg)")


# --- failure: the original trains on ---


def fail_to_plan(monkeypatch):
    def broken(*arguments):
        raise RuntimeError("no idea")

    monkeypatch.setattr(integration, "plan_forward", broken)
    return {}, "no idea"


def plan_a_graph_that_cannot_be_differentiated(monkeypatch):
    planned = integration.plan_forward

    def broken(forward, *arguments):
        graph = planned(forward, *arguments)
        graph.model.graph.node.pop(0)
        return graph

    monkeypatch.setattr(integration, "plan_forward", broken)
    return {}, ""


def plan_a_graph_without_kernels(monkeypatch):
    return {"precision": Precision.BF16, "device": replace(target("a100"), launch_us=1e-6)}, "NOT_IMPLEMENTED"


@pytest.mark.parametrize(
    "sabotage", [fail_to_plan, plan_a_graph_that_cannot_be_differentiated, plan_a_graph_without_kernels]
)
def test_the_original_trains_on_with_one_warning(mlp, ortmodule, monkeypatch, sabotage):
    network, batch = mlp()
    module = ortmodule.wrap(network)
    level = manager_of(module)._runtime_options.propagate_cast_ops_level
    expected = gradients(module, batch)
    options, reason = sabotage(monkeypatch)
    attached = attach(module, **{"device": EAGER} | options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = gradients(module, batch)
        integration._build_anew(manager_of(module))
        gradients(module, batch)
    ours = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
    assert len(ours) == 1
    assert ours[0].startswith("campo-onnx leaves this ORTModule in FP32")
    assert reason in str(attached.failure)
    assert str(attached).startswith("not planned: ")
    assert not attached.graphs
    assert error(actual, expected) == 0.0
    assert not casts(running(module))
    assert manager_of(module)._runtime_options.propagate_cast_ops_level == level


def test_an_error_of_ortmodule_itself_is_not_hidden(mlp, ortmodule, monkeypatch):
    network, batch = mlp()
    module = ortmodule.wrap(network)

    def refuse(manager, config):
        raise RuntimeError("not the plan's fault")

    attached = attach(module, device="v100")  # plans all in FP32
    monkeypatch.setattr(type(manager_of(module)), "_build_graph", refuse)
    with pytest.raises(RuntimeError, match="not the plan's fault"):
        module(*batch)
    assert attached.failure is None


# --- usage ---


def test_what_is_no_ortmodule(ortmodule, mlp):
    network, _ = mlp()
    with pytest.raises(UsageError, match=r"Mlp is not an ORTModule\. Wrap the network first"):
        attach(network)

    class Parallel:
        module = ortmodule.wrap(network)

    with pytest.raises(UsageError, match=r"Pass the ORTModule inside it"):
        attach(Parallel())


def test_names_are_checked_at_once(ortmodule, mlp):
    module = ortmodule.wrap(mlp()[0])
    with pytest.raises(UsageError, match="unknown strategy 'best'"):
        attach(module, strategy="best")
    with pytest.raises(UsageError, match="unknown device 'v1000'"):
        attach(module, device="v1000")
    assert "_build_graph" not in manager_of(module).__dict__
    attach(module)
    with pytest.raises(UsageError, match="attached to this ORTModule already"):
        attach(module)


def test_another_version_is_refused(ortmodule, mlp, monkeypatch):
    module = ortmodule.wrap(mlp()[0])
    monkeypatch.setattr(sys.modules["onnxruntime"], "__version__", "1.16.3")
    with pytest.raises(
        DeviceUnavailableError, match=r"1\.16\.3 is not supported.*Install onnxruntime-training"
    ):
        attach(module)


def test_one_that_fell_back_to_pytorch(ortmodule, mlp):
    module = ortmodule.wrap(mlp()[0])
    module.__dict__["_torch_module"] = object()
    with pytest.raises(UsageError, match="runs PyTorch instead"):
        attach(module)


def test_the_example_trains(ortmodule, capfd):
    example = runpy.run_path(str(ROOT / "examples" / "ortmodule_training.py"))
    losses = example["train"]("v100", steps=4)
    assert losses[-1] < losses[0]
    assert "forward nodes in fp16" in capfd.readouterr().out
