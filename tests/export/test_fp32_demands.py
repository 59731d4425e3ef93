"""Code that asks for FP32 has it in a plan of the exported step, forward and backward."""

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

sys.path.append(str(Path(__file__).parent.parent / "torch_compile"))  # no package

import fp32_demands
from fp32_demands import Region, batch

from campo_onnx.export.torch import export_training_step
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.targets.target import target


def planned(module: Any, strategy: str) -> list[Any]:
    x = batch()
    step = export_training_step(module, torch.nn.functional.mse_loss, x, x)
    plan = optimize(step, Options(target=target("v100"), lists=preset("campo"), strategy=strategy)).plan
    return list(plan.decisions)


@pytest.mark.parametrize("strategy", ["optimal", "tf-amp"])
@pytest.mark.parametrize("make", fp32_demands.MODULES)
def test_every_kind_is_kept(make: Any, strategy: str) -> None:
    with torch.autocast("cpu", dtype=torch.float16):
        decisions = planned(make(), strategy)
    asked = [d for d in decisions if d.verdict.decided_by is Reason.DEMANDED]
    assert {"grad" in d.node.split("/") for d in asked} == {False, True}
    assert all(d.precision is Precision.FP32 for d in asked)
    low = [d.node for d in decisions if d.precision is Precision.FP16]
    assert not [name for name in low if "keep_fp32" in name.split("/")]
    assert low or strategy == "optimal"  # where two layers alone may not pay


def products(module: Any) -> dict[str, bool]:
    """Say of each product of a step whether its name asks for FP32."""
    x = torch.randn(2, 4, 6)
    step = import_model(export_training_step(module, torch.nn.functional.mse_loss, x, x))
    nodes = [node for node in step.view.nodes if node.op.op_type in ("MatMul", "Gemm")]
    return {node.name: "keep_fp32" in node.name.split("/") for node in nodes}


class Twice(torch.nn.Module):
    """The same product within a region and outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        h = self.layer(x)
        first = h @ h.mT
        with torch.autocast("cpu", enabled=False):
            second = h @ h.mT
        return (first + second) @ h


def test_a_region_counts_without_autocast_around() -> None:
    asked = products(Region(width=6))
    assert sum(asked.values()) == 6  # two, each with two in the backward pass
    assert sum(not kept for kept in asked.values()) == 5  # of the layers around it


def test_equal_products_within_and_outside_are_two() -> None:
    asked = products(Twice())
    forward = [kept for name, kept in asked.items() if "grad" not in name.split("/") and "layer" not in name]
    assert sorted(forward) == [False, False, True]


def test_a_cast_outside_of_autocast_asks_for_nothing() -> None:
    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(6, 6)

        def forward(self, x: Any) -> Any:
            return self.layer(x).float().softmax(-1, dtype=torch.float32)

    assert not any("keep_fp32" in name for name in products(Plain()))


def test_an_export_with_autocast_switched_off_stays_fp32() -> None:
    with torch.autocast("cpu", enabled=False):
        assert all(products(Twice()).values())
