"""Memory of a step by the lives of its tensors. Nothing is run."""

from campo_onnx.optimize.step_ops import Step, Version


def peak_bytes(step: Step) -> float:
    """Find the most bytes that the tensors of a step take at a time.

    Notes
    -----
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
