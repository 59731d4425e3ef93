"""Outputs of the graph that end in the node that computes them.

An output has a buffer of its own, so that a Reshape that makes one is a copy; elsewhere it is free.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from campo_onnx.builder.value import Node, Value, readers_of, reshape_attributes

_SCALED = frozenset({"Mul", "Div"})


def ending_in_computation(
    nodes: Sequence[Node], outputs: frozenset[str], constant: Callable[[Sequence[int]], Value]
) -> list[Node]:
    """Reshape before a sum or a scaling what is reshaped behind it to make an output."""
    readers = readers_of(nodes)
    producer = {node.outputs[0].name: node for node in nodes}
    wanted: dict[str, Value] = {}  # what shall be computed in place of a value: the same, reshaped
    written: list[Node] = []  # from the last to the first

    def reshaped(source: Value | None, result: Value, name: str) -> None:
        """Have `source` computed in the shape of `result`, or reshape it."""
        assert source is not None  # a Reshape and a sum name what they read
        producing = producer.get(source.name)
        is_inside = producing is not None and readers[source.name] == 1 and source.name not in outputs
        if producing is not None and is_inside and _shape_before(producing, result) is not None:
            wanted[source.name] = result
        else:
            inputs, attributes = (source, constant(result.shape)), reshape_attributes(result.shape)
            written.append(
                Node(op_type="Reshape", inputs=inputs, outputs=(result,), attributes=attributes, name=name)
            )

    for node in reversed(nodes):
        result = wanted.get(node.outputs[0].name)
        if result is not None and (shape := _shape_before(node, result)) is not None:
            source, *others = node.inputs
            before = Value(name=f"{result.name}/before", dtype=result.dtype, shape=shape)
            written.append(replace(node, inputs=(before, *others), outputs=(result,)))
            reshaped(source, before, f"{node.name}/before")
        elif node.op_type == "Reshape" and node.outputs[0].name in outputs:
            reshaped(node.inputs[0], node.outputs[0], node.name)
        else:
            written.append(node)
    return written[::-1]


def _shape_before(node: Node, result: Value) -> tuple[int, ...] | None:
    """Give the shape that a node must read to give its result in another shape; None if it cannot."""
    source, other = node.inputs[0], node.inputs[1] if len(node.inputs) == 2 else None
    if source is None or other is None:
        return None
    if node.op_type in _SCALED and other.elements == 1 and source.shape == node.outputs[0].shape:
        return result.shape if other.rank <= len(result.shape) else None
    if not node.op_type.startswith("Reduce") or other.constant is None or node.attributes.get("keepdims", 1):
        return None
    axes = sorted(int(axis) for axis in other.constant)
    return (*source.shape[: len(axes)], *result.shape) if axes == [*range(len(axes))] else None
