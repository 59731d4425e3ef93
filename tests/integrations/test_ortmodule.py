"""Networks that train attached: what is computed, what the plan changes, and what happens on failure."""

import copy
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto
from ortmodule_steps import casts, error, gradients, manager_of, running

from campo_onnx.integrations import ortmodule as integration
from campo_onnx.integrations.ortmodule import attach
from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.targets.target import target

ROOT = Path(__file__).parent.parent.parent
EAGER = replace(target("v100"), launch_us=1e-6, host_us=1e-6)  # small networks are worth rewriting

# PyTorch's and ONNX Runtime's own, on the first export.
pytestmark = pytest.mark.filterwarnings("ignore:::(torch|onnxruntime|onnxscript|copyreg)")


@pytest.fixture(params=["mlp", "cnn", "smooth_cnn", "bert"])
def case(request, ortmodule):
    """A network and a batch, the same on every call."""
    networks = ortmodule.networks
    if request.param in networks.NEEDS_ATEN and not ortmodule.shim.HAS_ATEN:
        pytest.skip("ORTModule's aten_op_executor extension is not built")

    def make():
        sys.modules["torch"].manual_seed(0)
        return networks.NETWORKS[request.param]()

    return make


def emulate_rounding(module, attached):
    """Let the CPU provider, which erases FP16, round where the planned graph does."""
    import onnxruntime

    from campo_onnx.emulation.numerics import emulate

    manager = manager_of(module)
    create, configure = manager._create_execution_agent, manager._get_session_config

    def create_emulated():
        models = manager._onnx_models
        models.optimized_model = emulate(models.optimized_model, attached.graphs[-1].sizes)
        create()

    def configure_without_fusions():
        options, *rest = configure()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return options, *rest

    manager._create_execution_agent, manager._get_session_config = create_emulated, configure_without_fusions


# --- what is computed ---


@pytest.mark.parametrize("strategy", ["optimal", "tf-amp"])
def test_a_few_steps_train_as_in_fp32(case, ortmodule, strategy):
    torch = sys.modules["torch"]

    def losses(wrap):
        network, batch = case()
        module = wrap(network)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        values = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = module(*batch).square().mean()
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        return values

    handles = []

    def wrap(network):
        module = ortmodule.wrap(network)
        handles.append(attach(module, device=EAGER, strategy=strategy))
        return module

    mixed, fp32 = losses(wrap), losses(lambda network: network)
    assert handles[0].failure is None
    assert handles[0].graphs[0].plan.low_nodes
    assert fp32[-1] < fp32[0]
    assert mixed == pytest.approx(fp32, rel=1e-2)


def test_identities_change_no_gradient(case, ortmodule, monkeypatch):
    planned = integration.plan_forward

    def with_identities(forward, *arguments):
        model = onnx.ModelProto()
        model.CopyFrom(forward)
        for node in [n for n in model.graph.node if n.op_type in ("MatMul", "Gemm", "Conv", "FusedMatMul")]:
            index = list(model.graph.node).index(node)
            result = node.output[0]
            node.output[0] = f"{result}_before"
            identity = onnx.helper.make_node("Identity", [f"{result}_before"], [result], f"{result}_identity")
            model.graph.node.insert(index + 1, identity)
        return replace(planned(forward, *arguments), model=model)

    monkeypatch.setattr(integration, "plan_forward", with_identities)
    network, batch = case()
    module = ortmodule.wrap(network)
    expected = gradients(module, batch)
    attached = attach(module, device=EAGER, strategy="fp32")
    actual = gradients(module, batch)
    assert attached.failure is None
    assert any(node.name.endswith("_identity") for node in attached.graphs[0].model.graph.node)
    assert error(actual, expected) < 1e-5


@pytest.mark.parametrize("strategy", ["optimal", "tf-amp"])
def test_gradients_of_the_mixed_graph_under_emulated_rounding(case, ortmodule, strategy):
    network, batch = case()
    expected = gradients(copy.deepcopy(network), batch)
    module = ortmodule.wrap(network)
    attached = attach(module, device=EAGER, strategy=strategy)
    emulate_rounding(module, attached)
    deviation = error(gradients(module, batch), expected)
    assert attached.failure is None
    assert deviation > 1e-5  # below that nothing would have been rounded
    if isinstance(network, ortmodule.networks.Cnn) and not network.smooth:
        torch = sys.modules["torch"]
        with torch.autocast("cpu", torch.float16):
            assert deviation < 2 * error(gradients(copy.deepcopy(network), batch), expected)
    else:
        assert deviation < 1e-2


def test_a_smaller_last_batch(mlp, ortmodule):
    network, (x,) = mlp()
    module = ortmodule.wrap(copy.deepcopy(network))
    attach(module, device=EAGER)
    module(x)
    assert error(gradients(module, (x[:5],)), gradients(network, (x[:5],))) < 1e-2


# --- what the plan changes ---


def test_the_graph_that_runs_is_the_planned_one(case, ortmodule):
    network, batch = case()
    module = ortmodule.wrap(network)
    gradients(module, batch)
    fp32 = running(module)
    attached = attach(module, device=EAGER)
    gradients(module, batch)
    (graph,), mixed = attached.graphs, running(module)
    assert graph.plan.low_nodes
    for field in ("input", "output"):
        before, after = getattr(fp32.graph, field), getattr(mixed.graph, field)
        assert [v.name for v in before] == [v.name for v in after]
        assert [v.type.tensor_type.elem_type for v in before] == [v.type.tensor_type.elem_type for v in after]
    assert fp32.opset_import == mixed.opset_import
    forward = {node.output[0] for node in casts(mixed) if node.doc_string != "Backward pass"}
    planned = {node.output[0] for node in casts(graph.model)}
    assert forward <= planned
    # ONNX Runtime's loss reads FP16 itself and computes in FP32; else it moved none.
    readers = [n.op_type for n in graph.model.graph.node if set(n.input) & (planned - forward)]
    assert set(readers) <= {"SoftmaxCrossEntropyLossInternal"}
    cast_of = {node.output[0] for node in casts(mixed)}
    assert not any(node.input[0] in cast_of for node in casts(mixed))  # nothing to clean up
    keys = [(node.input[0], node.attribute[0].i) for node in casts(mixed)]
    assert len(keys) == len(set(keys))


def test_what_low_nodes_differentiate_to_is_low(mlp, ortmodule):
    network, batch = mlp()
    module = ortmodule.wrap(network)
    attached = attach(module, device=EAGER)
    gradients(module, batch)
    view = import_model(running(module), attached.graphs[0].sizes).view
    products = [n for n in running(module).graph.node if n.op_type == "Gemm"]
    assert sum(node.doc_string == "Backward pass" for node in products) == 5
    types = {view.tensors[tensor].dtype for node in products for tensor in (*node.input, *node.output)}
    assert types == {TensorProto.FLOAT16}


def test_backward_nodes_count(case, ortmodule):
    network, batch = case()
    plans = {}
    for backward in (True, False):
        module = ortmodule.wrap(copy.deepcopy(network))
        attached = attach(module, device="v100", backward=backward)
        gradients(module, batch)
        plans[backward] = attached.graphs[0].plan
    assert plans[True].fp32_us > 2 * plans[False].fp32_us


def test_where_nothing_pays_the_graph_is_left_alone(mlp, ortmodule):
    network, batch = mlp()
    module = ortmodule.wrap(network)
    level = manager_of(module)._runtime_options.propagate_cast_ops_level
    expected = gradients(module, batch)
    before = running(module).SerializeToString(deterministic=True)
    attached = attach(module, device="v100")
    assert error(gradients(module, batch), expected) == 0.0
    assert attached.graphs[0].model is None
    assert attached.failure is None
    assert running(module).SerializeToString(deterministic=True) == before
    assert manager_of(module)._runtime_options.propagate_cast_ops_level == level


def test_options_reach_the_plan(mlp, ortmodule):
    network, batch = mlp()
    module = ortmodule.wrap(network)
    attached = attach(module, device=EAGER, strategy="tf-amp", lists="tf2", keep_fp32=("Gemm",))
    assert str(attached) == "no training step was run yet"
    gradients(module, batch)
    plan = attached.graphs[0].plan
    assert (plan.strategy, plan.lists, plan.low) == ("tf-amp", "tf2", Precision.FP16)
    assert all(d.precision is Precision.FP32 for d in plan.decisions if d.op_type == "Gemm")
    assert attached.graphs[0].sizes == {"x_dim0": 16, "x_dim1": 64}
    assert "0 of 6 forward nodes in fp16" in str(attached)


def test_nothing_is_padded(ortmodule):
    torch = sys.modules["torch"]
    module = ortmodule.wrap(torch.nn.Sequential(*(torch.nn.Linear(1021, 1021) for _ in range(2))))
    attached = attach(module, device=EAGER)
    gradients(module, (torch.randn(61, 1021),))
    assert not attached.graphs[0].plan.pads
    assert attached.failure is None


def test_a_change_of_inputs_is_planned_again_where_ortmodule_looks_for_it(ortmodule, monkeypatch):
    torch = sys.modules["torch"]

    class Scaled(torch.nn.Linear):
        def forward(self, x, factor=None):
            return super().forward(x) if factor is None else super().forward(x) * factor

    monkeypatch.setenv("ORTMODULE_SKIPCHECK_POLICY", "SKIP_CHECK_DISABLED")
    module = ortmodule.wrap(Scaled(64, 64))
    attached = attach(module, device=EAGER)
    x = torch.randn(8, 64)
    for inputs in [(x,), (x,), (x, torch.ones(64))]:
        gradients(module, inputs)
    assert len(attached.graphs) == 2


def test_a_cached_export_can_be_optimized_as_a_file(mlp, ortmodule, monkeypatch, tmp_path):
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))
    network, batch = mlp()
    expected = gradients(ortmodule.wrap(copy.deepcopy(network)), batch)
    (cached,) = tmp_path.glob("*.onnx")
    chosen = Options(target=EAGER, lists=preset("campo"), dims={"x_dim0": 16, "x_dim1": 64}, pads=False)
    optimized = optimize(cached, chosen)
    assert optimized.plan.low_nodes
    export_model(optimized.model, cached)
    module = ortmodule.wrap(network)
    assert error(gradients(module, batch), expected) < 1e-2
    assert any(node.attribute[0].i == TensorProto.FLOAT16 for node in casts(running(module)))


# --- the handle ---


def test_detach(mlp, ortmodule):
    network, batch = mlp()
    module = ortmodule.wrap(network)
    manager = manager_of(module)
    level = manager._runtime_options.propagate_cast_ops_level
    expected = gradients(module, batch)
    attached = attach(module, device=EAGER)
    gradients(module, batch)
    assert casts(running(module))
    attached.detach()
    assert error(gradients(module, batch), expected) == 0.0
    assert not casts(running(module))
    assert not set(integration._HOOKS) & set(manager.__dict__)
    assert manager._runtime_options.propagate_cast_ops_level == level
    attach(module, device=EAGER)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_takes_its_plan_along(mlp, ortmodule, duplicate):
    network, batch = mlp()
    module = ortmodule.wrap(network)
    for training in (True, False):  # ORTModule pickles nothing without CUDA, for want of these three
        manager = module._torch_module._execution_manager(training)
        manager._torch_alloc = manager._torch_free = manager._torch_empty_cache = 0
    attached = attach(module, device=EAGER)
    expected = gradients(module, batch)
    other = duplicate(module)
    assert error(gradients(other, batch), expected) < 1e-5
    assert casts(running(other))
    attached.detach()
    gradients(module, batch)
    assert not casts(running(module))
    gradients(other, batch)
    assert casts(running(other))
