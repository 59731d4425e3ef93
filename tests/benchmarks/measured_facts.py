"""Facts of steps that nobody measured, in the form of those that were."""

from typing import Any

from benchmarks.measured import plans

STEP_MS = {"torch": 4.0, "fp32": 3.0, "all-low": 2.5, "tf-amp": 2.0, "campo": 1.5, "optimal": 1.0}


def plan_facts(predicted_us: float) -> dict[str, Any]:
    facts = {"low": 3, "nodes": 9, "casts": 2, "flops_share": 0.5, "fp32_us": 3000.0, "costs": "model"}
    return facts | {"predicted_us": predicted_us}


PLANS = {name: plan_facts(1000.0 * STEP_MS.get(name, 2.0)) for name in ("fp32", *plans.PLANS)}
