"""Code that asks for FP32 has it in both passes, whatever the plan makes of the rest."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import fp32_demands
from against_eager import compiled, distance
from fp32_demands import WIDTH, Region, batch
from torch import nn

from campo_onnx.integrations.torch_compile import report
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.plan.reason import Reason

PRODUCTS = ("MatMul", "Gemm", "com.microsoft:FusedMatMul")


def decisions(module: Any) -> list[Any]:
    return [decision for graph in report(module).graphs for decision in graph.plan.decisions]


def asked_for(module: Any, *, is_gradient: bool) -> list[Any]:
    asked = [d for d in decisions(module) if d.verdict.decided_by is Reason.DEMANDED]
    return [d for d in asked if ("grad" in d.node.split("/")) is is_gradient]


def step(run: Any, module: Any, x: Any) -> tuple[float, list[Any]]:
    """Run a step whose forward pass alone is under autocast, as torch advises."""
    module.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        y = run(x)
    loss = y.float().square().mean()
    (2**12 * loss).backward()  # as a GradScaler does
    return loss.item(), [p.grad.clone() for p in module.parameters()]


@pytest.mark.parametrize("make", fp32_demands.MODULES)
def test_numbers_beyond_fp16_train_as_in_eager(make: Any) -> None:
    module, x = make(), batch()
    run = compiled(module, device="v100")
    theirs, expected = step(module, module, x)
    ours, actual = step(run, module, x)
    assert abs(ours / theirs - 1) < 0.01
    assert distance(actual, expected) < 0.02
    assert asked_for(module, is_gradient=False)
    assert asked_for(module, is_gradient=True)
    low = [d for d in decisions(module) if d.precision is Precision.FP16]
    assert not [d.node for d in low if "keep_fp32" in d.node.split("/")]
    assert [d.node for d in low if d.op_type in PRODUCTS]  # of the layers around it


@pytest.mark.parametrize("is_training", [False, True])
def test_without_autocast_around(is_training: bool) -> None:
    module, x = Region(), batch()
    with torch.set_grad_enabled(is_training):
        compiled(module, device="v100")(x)
    products = [d for d in asked_for(module, is_gradient=False) if d.op_type in PRODUCTS]
    assert len(products) == 2
    if is_training:  # the products of a forward pass alone do not pay for their casts
        assert any(d.precision is Precision.FP16 for d in decisions(module))


def test_what_is_low_in_the_region_is_as_the_code_has_it() -> None:
    class Uncast(Region):
        def part(self, h: Any) -> Any:
            with torch.autocast("cpu", enabled=False):
                return (h / 100) @ (h / 100).mT @ h

    module, x = Uncast(), batch()
    with torch.autocast("cpu", dtype=torch.float16):
        compiled(module, device="v100")(x).sum().backward()
    assert not [d for d in decisions(module) if d.verdict.decided_by is Reason.DEMANDED]


def test_around_the_whole_model() -> None:
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
    with torch.autocast("cpu", enabled=False):
        compiled(module, device="v100")(batch()).sum().backward()
    assert not any(d.precision is Precision.FP16 for d in decisions(module))
