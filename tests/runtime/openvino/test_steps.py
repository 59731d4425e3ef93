"""Training steps on the real plugin: the plan is what runs, and gradients are those of ONNX Runtime."""

import numpy as np
import pytest

from campo_onnx.runtime.openvino.installed import openvino_problem

if problem := openvino_problem():
    pytest.skip(problem, allow_module_level=True)

from campo_onnx import Options, Precision, oplists, optimize_model, target
from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.openvino.runtime import RUNTIME
from campo_onnx.targets.detect import resolve_target
from tests.conftest import DATA, run_model

PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "FusedMatMul"})
STEPS = [
    *(DATA / f"{name}.onnx" for name in ("mlp", "alexnet_like", "bert2_mlm_sdpa", "resblocks")),
    *(DATA / "frameworks" / f"{name}.onnx" for name in ("mlp_torch", "cnn_jax", "attention_torch")),
]
RANDOM = frozenset({"alexnet_like", "bert2_mlm_sdpa"})  # dropout draws anew in every run


def distance(value, wanted):
    """Relative L2 distance."""
    value, wanted = np.asarray(value, np.float64), np.asarray(wanted, np.float64)
    return np.linalg.norm(value - wanted) / max(np.linalg.norm(wanted), 1e-30)


def planned(path, precision):
    options = Options(target=target("a100"), lists=oplists("pytorch"), strategy="torch-amp", low=precision)
    return optimize_model(path, options)


@pytest.mark.usefixtures("bf16_units")
@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_products_run_in_the_precision_that_is_planned(path):
    result = planned(path, Precision.BF16)
    executed = RUNTIME.load(result.model, "cpu").executed()
    products = {d.node: d.precision for d in result.plan.decisions if d.op_type in PRODUCTS}
    assert Precision.BF16 in products.values()
    assert {name: executed.get(name) for name in products} == products


@pytest.mark.usefixtures("bf16_units")
def test_a_plan_for_this_machine_runs_in_bf16_where_it_says():
    here, _ = resolve_target("auto", "openvino")
    assert here.computes_in(Precision.BF16)
    options = Options(target=here, lists=oplists("campo"), low=Precision.BF16)
    result = optimize_model(DATA / "bert2_mlm_sdpa.onnx", options)
    executed = RUNTIME.load(result.model, "cpu").executed()
    low = {d.node for d in result.plan.decisions if d.precision is Precision.BF16 and d.op_type in PRODUCTS}
    assert low
    assert {executed[name] for name in low} == {Precision.BF16}


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_a_step_in_fp32_runs_in_fp32(path):
    imported = import_model(path)
    executed = RUNTIME.load(imported.model, "cpu").executed()
    products = {node.name for node in imported.view.nodes if node.op.op_type in PRODUCTS}
    assert products <= executed.keys()
    assert set(executed.values()) == {Precision.FP32}


def rounding(model, feeds, wanted):
    """By how much outputs change where every input is rounded anew: a ReLU near zero changes side."""
    far = dict.fromkeys(wanted, 0.0)
    for seed in range(2):
        generator = np.random.default_rng(seed)
        shaken = {
            name: np.asarray(array * (1 + generator.uniform(-1, 1, array.shape) * 2**-22), array.dtype)
            if array.dtype == np.float32
            else array
            for name, array in feeds.items()
        }
        values = run_model(model, shaken)
        far = {name: max(far[name], distance(values[name], wanted[name])) for name in wanted}
    return far


@pytest.mark.parametrize("path", [p for p in STEPS if p.stem not in RANDOM], ids=lambda path: path.stem)
def test_loss_and_every_gradient_are_those_of_onnx_runtime(path):
    imported = import_model(path)
    feeds = synthesize(imported.view)
    values = RUNTIME.load(imported.model, "cpu").run(feeds)
    wanted = run_model(imported.model, feeds)
    assert values.keys() == wanted.keys()
    noise = rounding(imported.model, feeds, wanted)
    far = {name: distance(values[name], wanted[name]) for name in wanted}
    assert not {name: (far[name], noise[name]) for name in wanted if far[name] > max(1e-4, 10 * noise[name])}


@pytest.mark.usefixtures("bf16_units")
@pytest.mark.parametrize("path", [p for p in STEPS if p.stem not in RANDOM], ids=lambda path: path.stem)
def test_a_step_in_bf16_differs_by_rounding(path):
    feeds = synthesize(import_model(path).view)
    wanted = run_model(import_model(path).model, feeds)
    values = RUNTIME.load(planned(path, Precision.BF16).model, "cpu").run(feeds)
    largest = max(np.linalg.norm(value) for value in wanted.values())
    real = [name for name, value in wanted.items() if np.linalg.norm(value) > 1e-9 * largest]
    far = {name: distance(values[name], wanted[name]) for name in real}
    assert max(far.values()) > 1e-5  # it is BF16
    assert max(far.values()) < 0.1, far
