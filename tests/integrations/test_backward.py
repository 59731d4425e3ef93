"""A forward node is judged together with its backward nodes."""

from dataclasses import replace

import onnx
import pytest
from onnx import ModelProto

from campo_onnx.integrations.forward import owners, plan_forward, with_backward
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.problem import Problem
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import problem_of
from campo_onnx.targets.target import target

OPTIONS = Options(target=target("v100"), lists=preset("campo"), pads=False)

FORWARD = """g (float[N,512] x, float[512,512] w, float[512,512] v) => (float[N,512] y) {
    [first] h = MatMul(x, w)
    [act] a = Relu(h)
    [second] b = MatMul(a, v)
    [sum] y = Add(b, h)
}"""
GRADIENT = """g (float[N,512] x, float[512,512] w, float[512,512] v, float[N,512] s)
    => (float[512,512] w_grad, float[512,512] v_grad) {
    [first] h = MatMul(x, w)
    [act] a = Relu(h)
    [second] b = MatMul(a, v)
    [sum] y = Add(b, h)
    [yield] y_grad = com.microsoft.YieldOp(y)
    [second_Grad__FusedMatMul_0] v_grad = com.microsoft.FusedMatMul <transA = 1>(a, y_grad)
    [second_Grad__FusedMatMul_1] a_grad = com.microsoft.FusedMatMul <transB = 1>(y_grad, v)
    [act_Grad__ReluGrad_0] h_grad_0 = com.microsoft.ReluGrad(a_grad, a)
    [AccumulateGrad_h_grad] h_grad = Sum(h_grad_0, y_grad)
    [first_Grad__FusedMatMul_0] w_grad = com.microsoft.FusedMatMul <transA = 1>(x, h_grad)
    [stray] t = Mul(s, s)
}"""


@pytest.fixture
def graph(model_text):
    """Parse a graph; names of nodes in text form have no slash, so two underscores stand for it."""

    def parse(text: str) -> ModelProto:
        model = model_text(text)
        for node in model.graph.node:
            node.name = node.name.replace("__", "/")
        return model

    return parse


@pytest.fixture
def posed(graph):
    def pose_it(text: str, options: Options = OPTIONS) -> Problem:
        return problem_of(import_model(graph(text), {"N": 256}), options)

    return pose_it


def forward_part(model: ModelProto) -> ModelProto:
    """Cut ONNX Runtime's gradient graph back to what was differentiated."""
    forward = ModelProto()
    forward.CopyFrom(model)
    (crossing,) = (node for node in model.graph.node if node.op_type == "YieldOp")
    needed, kept = set(crossing.input), []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            needed |= set(node.input)
            kept.insert(0, node)
    del forward.graph.node[:], forward.graph.output[:]
    forward.graph.node.extend(kept)
    types = {value.name: value for value in model.graph.value_info}
    forward.graph.output.extend(types[name] for name in crossing.input)
    return forward


def test_each_backward_node_has_its_forward_node(posed):
    assert owners(posed(FORWARD).view, posed(GRADIENT).view) == {
        "yield": None,
        "second_Grad/FusedMatMul_0": "second",
        "second_Grad/FusedMatMul_1": "second",
        "act_Grad/ReluGrad_0": "act",
        "AccumulateGrad_h_grad": "first",
        "first_Grad/FusedMatMul_0": "first",
        "stray": None,
    }


@pytest.mark.parametrize("name", ["bert", "cnn"])
def test_all_of_onnx_runtimes_backward_nodes_have_one(name, request):
    path = request.config.rootpath / "tests" / "data" / f"{name}_optimized_training.onnx"
    gradient = onnx.load(path)
    views = [
        import_model(model, {"x_dim0": 4, "x_dim1": 3, "x_dim2": 8, "x_dim3": 8, "y_dim0": 4})
        if name == "cnn"
        else import_model(model, {"mask_dim0": 2, "ids_dim1": 8, "lab_dim0": 2, "lab_dim1": 8})
        for model in (forward_part(gradient), gradient)
    ]
    owners_of = owners(*(imported.view for imported in views))
    backward = [node.name for node in gradient.graph.node if node.doc_string == "Backward pass"]
    assert len(backward) > 10
    assert all(owners_of[node] for node in backward)


def test_times_and_casts_are_those_of_the_whole_step(posed):
    forward, gradient = posed(FORWARD), posed(GRADIENT)
    both = with_backward(forward, gradient)
    alone, together = forward.costs.nodes["second"], both.costs.nodes["second"]
    share = [gradient.costs.nodes[f"second_Grad/FusedMatMul_{i}"] for i in (0, 1)]
    assert together.fp32_us == pytest.approx(alone.fp32_us + sum(cost.fp32_us for cost in share))
    assert together.gain_us == pytest.approx(alone.gain_us + sum(cost.gain_us for cost in share))
    assert both.costs.fp32_us == pytest.approx(gradient.costs.fp32_us)
    assert both.costs.nodes["stray"].gain_us == 0.0
    doubled = {t for t, site in both.sites.items() if site.cast_us == 2 * forward.sites[t].cast_us}
    assert doubled == {"w", "v", "a", "h", "y"}  # x and b have no gradient of their own


def test_backward_nodes_can_turn_a_decision(graph):
    # What one product saves in the forward pass is less than its three casts cost. In the backward
    # pass two products save twice that, and casts cost as much as before.
    forward = "g (float[N,K] x, float[K,K] w) => (float[N,K] y) { [p] y = MatMul(x, w) }"
    gradient = """g (float[N,K] x, float[K,K] w) => (float[N,K] x_grad, float[K,K] w_grad) {
        [p] y = MatMul(x, w)
        [yield] y_grad = com.microsoft.YieldOp(y)
        [p_Grad__1] w_grad = com.microsoft.FusedMatMul <transA = 1>(x, y_grad)
        [p_Grad__2] x_grad = com.microsoft.FusedMatMul <transB = 1>(y_grad, w)
    }"""
    shapes = {"x": (256, 320), "w": (320, 320)}
    plans = [plan_forward(graph(forward), model, shapes, OPTIONS).plan for model in (None, graph(gradient))]
    assert [plan.low_nodes for plan in plans] == [frozenset(), {"p"}]


def test_a_gradient_without_a_kernel_keeps_its_node_in_fp32(posed):
    options = replace(OPTIONS, target=replace(target("a100"), launch_us=1e-6), low=Precision.BF16)
    text = GRADIENT.replace("ReluGrad", "DivGrad").replace("(a_grad, a)", "(a_grad, a, a)")
    text = text.replace("act_Grad__DivGrad_0", "act_Grad__ReluGrad_0")
    gradient = posed(text, options)
    forward = posed(FORWARD, options)
    assert "act" not in forward.fixed
    verdict = with_backward(forward, gradient).fixed["act"]
    assert verdict.decided_by is Reason.GRADIENT_KERNEL
    assert verdict.reason.startswith("its gradient: com.microsoft:DivGrad: ")
    assert set(with_backward(posed(FORWARD), posed(GRADIENT)).fixed) == set(posed(FORWARD).fixed)


def test_sizes_come_from_the_batch(model_text):
    forward = model_text(
        "g (float[batch,?,64] x, float[64,64] w, int64[1] i) => (float[batch,n,64] y) { y = MatMul(x, w) }"
    )
    planned = plan_forward(forward, None, {"x": (32, 7, 64), "w": (64, 64)}, OPTIONS)
    assert planned.sizes == {"batch": 32, "x[1]": 7}
    assert "0 of 1 forward nodes in fp16, 0 casts" in str(planned)
