"""The part of a step that can be run in some time and memory, as sizes tell beforehand."""

from dataclasses import dataclass, replace

import onnx

from campo_onnx.emulation.smaller_batch import MOST_NODES, Step, at_batch, batch_of, first_nodes
from campo_onnx.ir.sort import outer_reads
from campo_onnx.ir.view import GraphView, TensorKind
from campo_onnx.ops.facts import work_of

_COPIES = 3  # of what a run reads and makes: the batch, the FP32 outputs, and the run's own
RUNS = 3  # a batch without a fault: FP32, products, plan; more where an output is off by more than the limit

# One core of an ordinary machine. Predicted, not taken from a clock: a plan is the same everywhere.
_FLOPS_PER_S, _BYTES_PER_S, _DRAWN_BYTES_PER_S, _NODE_S = 2e10, 4e9, 2e8, 2e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The first nodes of a step, and what it is predicted to cost to run them."""

    step: Step
    nodes: int
    of_nodes: int  # number of nodes of the whole step
    model: onnx.ModelProto
    # step_s, drawing_s: seconds that one run takes, and drawing values for its inputs.
    step_s: float
    drawing_s: float

    def left_out(self, allowance: str) -> str:
        """Name what is not run, in words; nothing where all of the step is."""
        rows, of_rows = self.step.rows, self.step.of_rows
        parts = [f"all but {rows:,} of {of_rows:,} rows of the batch"] if rows < of_rows else []
        if self.nodes < self.of_nodes:
            parts.append(f"all but the first {self.nodes:,} of {self.of_nodes:,} nodes")
        return f"{' and '.join(parts)}, to keep within {allowance}" if parts else ""


def affordable_part(step: Step, budget_s: float, most_bytes: float, *, draws: bool) -> Part:
    """Choose what to run: all of a step, all of it for fewer rows of data, or its first nodes."""
    part = _part(step, budget_s, most_bytes, draws=draws)
    if part.nodes == part.of_nodes or part.nodes >= MOST_NODES:
        return part
    needed_s = RUNS * sum(_nominal_s(node.name, step.view) for node in step.view.nodes[:MOST_NODES])
    rows = max(1, int(batch_of(step.view) * budget_s / needed_s))
    smaller = at_batch(step, rows)
    if smaller is None:
        return part
    return replace(_part(smaller, budget_s, most_bytes, draws=draws), of_nodes=part.of_nodes)


def _part(step: Step, budget_s: float, most_bytes: float, *, draws: bool) -> Part:
    """Cut the step off where it would take too long or too much memory, as sizes tell beforehand."""
    model, view = step.model, step.view
    outputs = {value.name for value in model.graph.output}
    held: set[str] = set()  # inputs, weights and outputs: they lie in memory from the first node to the last
    held_bytes = largest_bytes = step_s = drawing_s = 0.0
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        tensors = {
            t: view.tensors[t] for t in (*node.input, *node.output, *outer_reads(node)) if t in view.tensors
        }
        fresh = [t for t in tensors if t not in held and (t not in view.producer or t in outputs)]
        more_bytes = sum(tensors[t].nbytes for t in fresh)
        drawn_bytes = sum(tensors[t].nbytes for t in fresh if tensors[t].kind is TensorKind.INPUT)
        held_bytes += more_bytes
        largest_bytes = max(largest_bytes, sum(info.nbytes for info in tensors.values()))
        step_s += _nominal_s(node.name, view) + more_bytes / _BYTES_PER_S
        drawing_s += drawn_bytes / _DRAWN_BYTES_PER_S if draws else 0.0
        is_too_large = _COPIES * (held_bytes + largest_bytes) > most_bytes
        if is_too_large or drawing_s + RUNS * step_s > budget_s:
            step_s -= _nominal_s(node.name, view) + more_bytes / _BYTES_PER_S
            drawing_s -= drawn_bytes / _DRAWN_BYTES_PER_S if draws else 0.0
            break
        held.update(fresh)
        nodes.append(node)
    return Part(
        step=step,
        nodes=len(nodes),
        of_nodes=len(model.graph.node),
        model=first_nodes(nodes, model),
        step_s=step_s,
        drawing_s=drawing_s,
    )


def nominal_step_s(view: GraphView) -> float:
    """Predict the seconds that one run of a step takes: the same on every machine."""
    return sum(_nominal_s(node.name, view) for node in view.nodes)


def _nominal_s(name: str, view: GraphView) -> float:
    if name not in view.node:
        return _NODE_S
    node = view.node[name]
    moved = sum(view.tensors[t].nbytes for t in (*node.inputs, *node.outputs) if t in view.tensors)
    return work_of(view.signature(name)).flops / _FLOPS_PER_S + moved / _BYTES_PER_S + _NODE_S
