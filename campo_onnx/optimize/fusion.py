"""Bytes a step would move if neighbouring pointwise nodes were one kernel: a bound for any compiler."""

from collections.abc import Mapping

from campo_onnx.optimize.step_ops import Moved, Step, StepOp, Version


def fused(step: Step) -> Moved:
    """Count a step with every set of neighbouring pointwise nodes as one kernel.

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
