"""The same network out of three frameworks: which precision its operations get, role by role.

    python benchmarks/frameworks/agreement.py

Reads tests/data/frameworks (``make.py`` makes those graphs anew), needs neither PyTorch nor JAX, and
writes benchmarks/results/frameworks.md. Costs are estimates from public figures.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from roles import LAYOUT, PRODUCT, Role, roles_of

from campo_onnx import __version__
from campo_onnx.devices.datasheet import device
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.oplists import preset
from campo_onnx.optimize.plan import Decision, Plan
from campo_onnx.optimize.report import report_of
from campo_onnx.options import Options
from campo_onnx.pipeline import decide, problem_of

ROOT = Path(__file__).parents[2]
GRAPHS = ROOT / "tests" / "data" / "frameworks"
RESULT = ROOT / "benchmarks" / "results" / "frameworks.md"
NETWORKS = ("mlp", "cnn", "attention")
FRAMEWORKS = ("torch", "jax", "ortmodule")
DEVICES = ("v100", "h200")
STRATEGIES = ("optimal", "campo")

_HOW_TO_READ = """\
Nodes are compared by what they are for, told by structure alone (`benchmarks/frameworks/roles.py`): a
matrix product by its FLOPs and by whether it computes a forward value, the gradient of data or that of a
weight; the pieces of a normalization or a softmax by the statistic that is broadcast back; sums that only
leave the graph are bias gradients; activations, biases and residual sums are elementwise. Nodes that move
data are left out.

A cell is nodes in FP16 / all nodes of the role, for torch, jax and ortmodule in this order; `-` means
that the graph has none. Bold: the graphs are not all in FP16, all in FP32 or all partly so. Each is a
training step without weight update. ORTModule's is planned node by node, as `campo-onnx optimize` does
with the file; `attach` judges a forward node together with its backward nodes."""

_READING = """\
## Why graphs of one network differ

- **Products agree**, all of them in every column, but for the CNN's classifier: 4 MFLOP, a few
  microseconds, decided by which casts its neighbours need anyway.
- **Normalizations** are one operator whose statistics the kernel computes in FP32, or pieces (JAX's; the
  training statistics and the gradient of PyTorch's batch normalization). The square, the sum of squares
  and what follows on the small statistic are FP32 by the rule `normalization`: x * x overflows FP16 from
  256 on.
- **Softmax** is one operator or pieces; the rule `softmax` knows JAX's spelling, which takes the larger
  of the row's maximum and minus infinity. Only JAX's gradient has a Pow, one over the square of a row's
  sum: deny.
- **Max pooling** is a call of PyTorch's own operator in ORTModule's graphs, an FP32 boundary; elsewhere
  it is MaxPool. Its gradient scatters, and is FP32 everywhere. The average over all positions is a sum,
  and deny.
- **Losses** are FP32 in all three; ORTModule's leaves the graph through YieldOp. The gradient of the mean
  squared error is a product with 2/N in PyTorch and JAX, a constant too small for FP16 that keeps its
  node FP32; ORTModule divides by N in a node of its own.
- **Gradients of scales** that JAX sums by themselves count as bias gradients, and are low; in the other
  graphs the same sum is a piece of the normalization, or inside its operator.
- **How much is won** differs more than what is low: a GELU is one node forward and one backward in
  ORTModule's graphs and up to 11 elsewhere, each of which moves its tensors through memory. ORTModule's
  attention block, on the other hand, computes two sums of which only the shape is read ("elementwise,
  forward")."""

_COSTS = ("minimum-cut", "traverse-1", "traverse-3", "traverse-4", "never-worse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The nodes of one role in one framework's graph.

    Parameters
    ----------
    plan
        The plan.
    decisions
        Of the nodes of this role that compute floating point.
    """

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
    def why_fp32(self) -> Mapping[str, str]:
        """Why nodes of it stayed FP32: the operators, by the plan's reason."""
        part = replace(self.plan, decisions=self.decisions)
        return {row.why: row.op_types for row in report_of(part).kept}

    @property
    def left_to_costs_us(self) -> float:
        """What FP16 would save in nodes that stayed FP32 because of casts, the casts not counted."""
        return sum(
            d.gain_us for d in self.decisions if d.precision != self.plan.low and d.decided_by in _COSTS
        )

    def __str__(self) -> str:
        return f"{self.low}/{len(self.decisions)}" if self.decisions else "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One network, device and strategy, planned in every framework's graph.

    Parameters
    ----------
    network, device, strategy
        What was planned.
    plans
        By framework.
    shares
        By role, then by framework.
    """

    network: str
    device: str
    strategy: str
    plans: Mapping[str, Plan]
    shares: Mapping[Role, Mapping[str, Share]]


def agreement(network: str, device_name: str, strategy: str) -> Agreement:
    """Plan one network in every framework's graph, and sort its nodes by role."""
    lists = preset("campo")
    plans: dict[str, Plan] = {}
    found: dict[Role, dict[str, list[Decision]]] = defaultdict(lambda: defaultdict(list))
    for framework in FRAMEWORKS:
        imported = import_model(GRAPHS / f"{network}_{framework}.onnx")
        options = Options(device=device(device_name), lists=lists, strategy=strategy)
        problem = problem_of(imported, options)
        plans[framework] = plan = decide(problem, imported, options)
        roles = roles_of(problem, lists)
        for decision in plan.decisions:
            if decision.precision is None:
                continue
            for role in roles[decision.node]:
                found[role][framework].append(decision)
    return Agreement(
        network=network,
        device=device_name,
        strategy=strategy,
        plans=plans,
        shares={
            role: {name: Share(plan=plans[name], decisions=tuple(by[name])) for name in FRAMEWORKS}
            for role, by in sorted(found.items())
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


def document(agreements: Sequence[Agreement]) -> str:
    """Write what agrees and what does not as a Markdown document."""
    lines = [
        "# The same network out of PyTorch, JAX and ORTModule",
        "",
        f"Estimates from public figures, campo-onnx {__version__}. No step was run. The graphs are "
        "tests/data/frameworks; `benchmarks/frameworks/agreement.py` writes this page.",
        "",
        _HOW_TO_READ,
    ]
    for network in NETWORKS:
        lines += ["", f"## {network}", "", *_table([a for a in agreements if a.network == network])]
    return "\n".join([*lines, "", _READING, ""])


def _table(agreements: Sequence[Agreement]) -> Iterator[str]:
    heads = [f"{a.device}, {a.strategy}" for a in agreements]
    yield f"| role | {' | '.join(heads)} |"
    yield f"|---|{'---|' * len(heads)}"
    yield _row("predicted speed-up", [[f"{p.speedup:.2f}" for p in a.plans.values()] for a in agreements])
    yield _row("casts", [[f"{len(p.casts)}" for p in a.plans.values()] for a in agreements])
    roles = sorted({role for a in agreements for role in a.shares if role.kind != LAYOUT})
    reasons: dict[tuple[Role, str, str, str], list[str]] = defaultdict(list)
    for role in sorted(roles, key=lambda role: (role.kind != PRODUCT, role)):
        cells = []
        for a in agreements:
            shares = a.shares[role]
            cells.append([f"**{s}**" if differs(shares) else f"{s}" for s in shares.values()])
            if differs(shares):
                for framework, share in shares.items():
                    for why, op_types in share.why_fp32.items():
                        reasons[role, framework, why, op_types].append(f"{a.device} {a.strategy}")
        yield _row(str(role), cells)
    if not reasons:
        return
    yield ""
    yield "Why a bold one is not all FP16, in the plans' own words:"
    yield ""
    yield "| role | graph | stayed FP32 | why | in |"
    yield "|---|---|---|---|---|"
    for (role, framework, why, op_types), where in reasons.items():
        yield f"| {role} | {framework} | {op_types} | {why} | {', '.join(where)} |"


def _row(name: str, cells: Sequence[Sequence[str]]) -> str:
    return f"| {name} | {' | '.join(', '.join(cell) for cell in cells)} |"


def main() -> None:
    """Write the page."""
    RESULT.write_text(document(list(every_agreement())), encoding="utf-8")
    print(RESULT)


if __name__ == "__main__":
    main()
