"""The same network out of three frameworks: which precision its operations get, role by role.

    python -m benchmarks.frameworks.agreement

Reads tests/data/frameworks (``make.py`` there makes those graphs anew), needs neither PyTorch nor JAX, and
writes results/frameworks.json and .md. Costs are estimates from public figures.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.frameworks.roles import LAYOUT, PRODUCT, Role, roles_of
from benchmarks.pages import provenance, publish
from campo_onnx import Options, Plan, Precision, oplists, optimize_model, target
from campo_onnx.optimize.plan.edits import Decision
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.plan.report import report_of

GRAPHS = Path(__file__).parents[2] / "tests" / "data" / "frameworks"
NETWORKS = ("mlp", "cnn", "attention")
FRAMEWORKS = ("torch", "jax", "ortmodule")
DEVICES = ("v100", "h200")
STRATEGIES = ("optimal", "campo")

_COSTS = (
    *(Reason.CUT_FP32, Reason.TRAVERSE_1_FP32, Reason.NOT_BETWEEN, Reason.TRAVERSE_4_FP32),
    Reason.NEVER_WORSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The nodes of one role in one framework's graph."""

    plan: Plan
    decisions: tuple[Decision, ...]

    @property
    def low(self) -> int:
        """How many are low."""
        return sum(d.precision == self.plan.low for d in self.decisions)

    @property
    def precision(self) -> str:
        """``fp16``, ``fp32``, ``mixed``, or ``-`` where the graph has no such node."""
        if not self.decisions:
            return "-"
        if 0 < self.low < len(self.decisions):
            return "mixed"
        return (self.plan.low if self.low else Precision.FP32).value

    @property
    def why_fp32(self) -> dict[str, str]:
        """Why nodes of it stayed FP32: the operators, by the plan's reason."""
        nothing = dict.fromkeys(("casts", "reused", "dropped", "constants", "pads"), ())
        part = replace(self.plan, decisions=self.decisions, **nothing)
        return {row.why: row.op_types for row in report_of(part).kept}

    @property
    def left_to_costs_us(self) -> float:
        """Time that FP16 would save in nodes that stayed FP32 because of casts, the casts not counted."""
        return sum(
            d.gain_us for d in self.decisions if d.precision != self.plan.low and d.decided_by in _COSTS
        )

    def __str__(self) -> str:
        return f"{self.low}/{len(self.decisions)}" if self.decisions else "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One network, device and strategy, planned in every framework's graph."""

    network: str
    device: str
    strategy: str
    plans: Mapping[str, Plan]
    shares: Mapping[Role, Mapping[str, Share]]


def agreement(network: str, device_name: str, strategy: str) -> Agreement:
    """Plan one network in every framework's graph, and sort its nodes by role."""
    options = Options(target=target(device_name), lists=oplists("campo"), strategy=strategy)
    plans: dict[str, Plan] = {}
    by_role: dict[Role, dict[str, list[Decision]]] = defaultdict(lambda: defaultdict(list))
    for framework in FRAMEWORKS:
        result = optimize_model(GRAPHS / f"{network}_{framework}.onnx", options)
        plans[framework] = result.plan
        roles = roles_of(result.problem, options.lists)
        for decision in result.plan.decisions:
            if decision.precision is None:
                continue
            for role in roles[decision.node]:
                by_role[role][framework].append(decision)
    return Agreement(
        network=network,
        device=device_name,
        strategy=strategy,
        plans=plans,
        shares={
            role: {name: Share(plan=plans[name], decisions=tuple(by[name])) for name in FRAMEWORKS}
            for role, by in sorted(by_role.items())
        },
    )


def every_agreement() -> Iterator[Agreement]:
    """Plan every network for every device by every strategy."""
    for network in NETWORKS:
        for device_name in DEVICES:
            for strategy in STRATEGIES:
                yield agreement(network, device_name, strategy)


def differs(shares: Mapping[str, Share]) -> bool:
    """Whether two frameworks' graphs give a role another precision."""
    return len({share.precision for share in shares.values()} - {"-"}) > 1


def results(agreements: Sequence[Agreement]) -> dict[str, Any]:
    """Put what agrees and what does not together, by network."""
    return {network: _of([a for a in agreements if a.network == network]) for network in NETWORKS}


def _of(agreements: Sequence[Agreement]) -> dict[str, Any]:
    roles = sorted({role for a in agreements for role in a.shares if role.kind != LAYOUT})
    roles.sort(key=lambda role: role.kind != PRODUCT)
    rows, reasons = [], defaultdict(list)
    for role in roles:
        cells = []
        for a in agreements:
            shares = a.shares[role]
            nodes = {name: [share.low, len(share.decisions)] for name, share in shares.items()}
            cells.append({"nodes": nodes, "differs": differs(shares)})
            if differs(shares):
                for framework, share in shares.items():
                    for why, op_types in share.why_fp32.items():
                        reasons[str(role), framework, op_types, why].append(f"{a.device} {a.strategy}")
        rows.append({"role": str(role), "cells": cells})
    return {
        "columns": [f"{a.device}, {a.strategy}" for a in agreements],
        "speedups": [{name: plan.speedup for name, plan in a.plans.items()} for a in agreements],
        "casts": [{name: len(plan.casts) for name, plan in a.plans.items()} for a in agreements],
        "rows": rows,
        "reasons": [[*key, ", ".join(where)] for key, where in reasons.items()],
    }


def main() -> None:
    """Plan everything, and write the page."""
    print(*publish("frameworks", {"made": provenance(), "networks": results(list(every_agreement()))}))


if __name__ == "__main__":
    main()
