"""Bytes that a step moves and kernels that it launches, by family and if neighbours were fused: counted."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from campo_onnx.ir.view import GraphView
from campo_onnx.ops.key import CAST
from campo_onnx.ops.registry import spec
from campo_onnx.ops.spec import Family
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.step_ops import Moved, Step, StepOp, Version, launched, planned_step, step_of

Key = TypeVar("Key", Family, str)

__all__ = ["Moved", "Traffic", "module_of", "planned_traffic", "traffic"]

GRADIENT = "grad"
"""Part of the exporter's names of the backward pass: ``encoder.query/grad/MatMul``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The bytes that one step moves, and its launches."""

    # By what kind of thing the operators compute, the largest first; Casts are apart.
    by_family: Mapping[Family, Moved]
    # By where the nodes come from, as module_of says it, the largest first; Casts are apart.
    by_module: Mapping[str, Moved]
    casts: Moved
    fused: Moved  # the whole step if neighbouring pointwise nodes were one kernel
    peak_bytes: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_family", MappingProxyType(dict(self.by_family)))
        object.__setattr__(self, "by_module", MappingProxyType(dict(self.by_module)))

    @property
    def total(self) -> Moved:
        """The whole step."""
        return sum(self.by_family.values(), self.casts)


def traffic(view: GraphView) -> Traffic:
    """Count a graph as it stands: an FP32 step, or a mixed one with its Casts and Pads."""
    return _counted(step_of(view))


def planned_traffic(problem: Problem, plan: Plan) -> Traffic:
    """Count a step as it is planned, without writing its graph.

    It is what :func:`traffic` says of the graph that the plan makes, but for padding, which is left
    out: a padded product counts at its own size.
    """
    return _counted(planned_step(problem, plan))


def module_of(node: str) -> str:
    """Say where a node comes from by its name; modules that differ by a number are one.

    >>> module_of("layers.3.query/grad/MatMul_1")
    'layers.*.query, backward'
    >>> module_of("/encoder/layer.0/output/Add")
    'encoder/layer.*/output'
    >>> module_of("MatMul_7")
    ''
    """
    *path, _ = node.lstrip("/").split("/")
    scope = re.sub(r"(?<![^._/])\d+(?![^._/])", "*", "/".join(part for part in path if part != GRADIENT))
    return f"{scope or 'outermost'}, backward" if GRADIENT in path else scope


def _counted(step: Step) -> Traffic:
    ops = [op for op in launched(step) if op.op != CAST]
    return Traffic(
        by_family=_sums((spec(op.op).family, op) for op in ops),
        by_module=_sums((module_of(f"{op.module}/" if op.module else op.node), op) for op in ops),
        casts=sum((op.moved for op in launched(step) if op.op == CAST), Moved()),
        fused=fused(step),
        peak_bytes=peak_bytes(step),
    )


def _sums(ops: Iterable[tuple[Key, StepOp]]) -> dict[Key, Moved]:
    totals: dict[Key, Moved] = {}
    for key, op in ops:
        totals[key] = totals.get(key, Moved()) + op.moved
    return dict(sorted(totals.items(), key=lambda item: -item[1].moved_bytes))


def peak_bytes(step: Step) -> float:
    """Find the most bytes that the tensors of a step take at a time.

    Operations run in the order of the graph. A tensor lives from the operation that makes it to the last one
    that reads it; inputs and constants live all the time, results to the end. A view has the bytes of what it
    names. Workspaces of kernels, and what an allocator cannot use again, come on top.
    """
    aliases = step.aliases()
    last: dict[Version, int] = {}
    for i, op in enumerate(step.ops):
        for tensor in (*op.reads, *op.writes):
            last[aliases.get(tensor, tensor)] = i
    for tensor in (*step.given, *step.results):
        last[aliases.get(tensor, tensor)] = len(step.ops)
    dying: dict[int, list[Version]] = {}
    for tensor, i in last.items():
        dying.setdefault(i, []).append(tensor)
    older = step.given | aliases.keys()
    alive = sum(step.sizes.get(tensor, 0.0) for tensor in step.given)
    peak = alive
    for i, op in enumerate(step.ops):
        alive += sum(step.sizes.get(tensor, 0.0) for tensor in op.writes if tensor not in older)
        peak = max(peak, alive)
        alive -= sum(step.sizes.get(tensor, 0.0) for tensor in dying.get(i, ()))
    return peak


def fused(step: Step) -> Moved:
    """Count a step with every set of neighbouring pointwise nodes as one kernel: a bound for any compiler.

    A kernel reads once what was made outside of it and writes what is read outside. Nodes with another
    kernel between them stay apart, so that there is an order to run them in.
    """
    aliases = step.aliases()
    ops = [op for op in step.ops if op.moved.launches]
    reads = [{aliases.get(tensor, tensor) for tensor in op.reads} for op in ops]
    groups = _groups(ops, reads)
    results = {aliases.get(tensor, tensor) for tensor in step.results}
    readers: dict[Version, set[int]] = {}
    for i, tensors in enumerate(reads):
        for tensor in tensors:
            readers.setdefault(tensor, set()).add(groups[i])
    members: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    total = Moved()
    for group, kernel in members.items():
        if len(kernel) == 1:
            total += ops[kernel[0]].moved
            continue
        outputs_of_kernel = {tensor for i in kernel for tensor in ops[i].writes}
        read = {tensor for i in kernel for tensor in reads[i]} - outputs_of_kernel
        written = {t for t in outputs_of_kernel if t in results or readers.get(t, set()) - {group}}
        moved_bytes = sum(step.sizes.get(tensor, 0.0) for tensor in (*read, *written))
        total += Moved(launches=1, moved_bytes=moved_bytes)
    return total


def _groups(ops: list[StepOp], reads: list[set[Version]]) -> list[int]:
    """Number the kernel of each operation.

    Two pointwise operations are one kernel where one reads the other and as many kernels must have run
    before both: nothing then can lie between them.
    """
    producer: Mapping[Version, int] = {tensor: i for i, op in enumerate(ops) for tensor in op.writes}
    parent, depth = list(range(len(ops))), [0] * len(ops)
    for i, op in enumerate(ops):
        before = [producer[tensor] for tensor in reads[i] if tensor in producer]
        joins = [j for j in before if op.is_pointwise and ops[j].is_pointwise]
        depth[i] = max((depth[j] + (j not in joins) for j in before), default=0)
        for j in joins:
            if depth[j] == depth[i]:
                parent[_root(parent, i)] = _root(parent, j)
    return [_root(parent, i) for i in range(len(ops))]


def _root(parent: list[int], i: int) -> int:
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i
