"""Rewrites of a whole graph: pairs of nodes that can be one once all consumers are known."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from campo_onnx.builder.cuda_fusions import BIAS_DROPOUT
from campo_onnx.builder.value import Node, Value, readers_of, reshape_attributes


def merged_pairs(nodes: Sequence[Node], outputs: frozenset[str]) -> list[Node]:
    """Merge nodes with their only consumer.

    1. A reduction keeps its axes, or not, as its consumer reshapes it anyway.
    2. The transpose of a product is the product of the transposes.
    """
    consumers = readers_of(nodes)
    by_input = {node.inputs[0].name: node for node in nodes if node.inputs and node.inputs[0] is not None}
    merged: list[Node] = []
    dropped: set[str] = set()
    for node in nodes:
        if node.name in dropped:
            continue
        result = node.outputs[0].name
        consumer = by_input.get(result)
        pair = None
        if consumer is not None and consumers[result] == 1 and result not in outputs:
            pair = _fitted_reduction(node, consumer) or _turned_product(node, consumer)
        if pair is not None and consumer is not None:
            dropped.add(consumer.name)
        merged.append(pair or node)
    return merged


_OPTIONAL_OUTPUTS = frozenset({"Dropout", BIAS_DROPOUT, "LayerNormalization", "MaxPool"})
"""Operators whose outputs but the first may be left out."""


def without_unread(nodes: Sequence[Node], outputs: frozenset[str]) -> list[Node]:
    """Leave out what an operator would write for nobody: the mask of a dropout, say."""
    read = {v.name for node in nodes for v in node.inputs if v is not None} | outputs
    fewer: list[Node] = []
    for node in nodes:
        needed = node.outputs
        while node.op_type in _OPTIONAL_OUTPUTS and len(needed) > 1 and needed[-1].name not in read:
            needed = needed[:-1]
        fewer.append(node if needed is node.outputs else replace(node, outputs=needed))
    return fewer


PAD_NAMES_AXES = 18
"""The first opset in which Pad has the input axes."""


def pads_of_their_own(nodes: Sequence[Node], constant: Callable[[Sequence[int]], Value]) -> list[Node]:
    """Keep ONNX Runtime from fusing zeros around an image with the pool that reads them.

    Its optimizer (1.31) makes them the pool's own padding. That of a MaxPool is lower than any number, so
    maxima below zero come out wrong; and padding as wide as the window is refused when the graph is loaded.
    It leaves a Pad that names its axes as it is.
    """
    both = (node for node in nodes if node.op_type in ("MaxPool", "AveragePool"))
    pools = {node.inputs[0].name: node for node in both if node.inputs[0] is not None}
    apart: list[Node] = []
    for node in nodes:
        pool = pools.get(node.outputs[0].name)
        if pool is not None and node.op_type == "Pad" and len(node.inputs) <= 3 and _fuses_badly(node, pool):
            axes = constant(range(node.outputs[0].rank))
            node = replace(node, inputs=(*node.inputs, *[None] * (3 - len(node.inputs)), axes))
        apart.append(node)
    return apart


def _fuses_badly(pad: Node, pool: Node) -> bool:
    if pool.op_type == "MaxPool":
        return len(pool.outputs) == 1  # one that also gives places is not fused
    widths, kernel = pad.inputs[1], pool.attributes["kernel_shape"]
    if widths is None or widths.constant is None:
        return True
    rank, own = pad.outputs[0].rank, pool.attributes.get("pads") or [0] * 2 * len(kernel)
    before, after = widths.constant[rank - len(kernel) : rank], widths.constant[2 * rank - len(kernel) :]
    wide = zip((*before, *after), own, (*kernel, *kernel), strict=True)
    return any(width + more >= size for width, more, size in wide)


def splits(nodes: Sequence[Node], constant: Callable[[Sequence[int]], Value]) -> list[Node]:
    """Write slices that share a tensor out among them as one Split, which reads it once."""
    groups: dict[tuple[str, int], list[tuple[int, int, Node]]] = {}
    for node in nodes:
        part = part_of(node)
        if part is not None:
            axis, first, last = part
            assert node.inputs[0] is not None  # a slice always names what it cuts
            groups.setdefault((node.inputs[0].name, axis), []).append((first, last, node))
    joint: dict[str, Node] = {}
    merged: set[str] = set()
    for (_, axis), parts in groups.items():
        parts.sort(key=lambda part: part[0])
        source = parts[0][2].inputs[0]
        assert source is not None
        bounds = [0, *(last for _, last, _ in parts)]
        shares = [first for first, _, _ in parts] == bounds[:-1] and bounds[-1] == source.shape[axis]
        if len(parts) < 2 or not shares:
            continue
        cut = [node for _, _, node in parts]
        sizes = constant([node.outputs[0].shape[axis] for node in cut])
        split = Node(
            op_type="Split",
            inputs=(source, sizes),
            outputs=tuple(node.outputs[0] for node in cut),
            attributes={"axis": axis},
            name=cut[0].name,
        )
        merged.update(node.name for node in cut)
        joint[next(node.name for node in nodes if node in cut)] = split
    return [joint.get(node.name, node) for node in nodes if node.name in joint or node.name not in merged]


def part_of(node: Node) -> tuple[int, int, int] | None:
    """Say which axis a node cuts, from where to where; None unless it is one, by steps of one."""
    if node.op_type != "Slice" or len(node.inputs) != 4:
        return None
    starts, ends, axes = (None if v is None else v.constant for v in node.inputs[1:])
    if starts is None or ends is None or axes is None or axes.size != 1:
        return None
    return int(axes[0]), int(starts[0]), int(ends[0])


def _fitted_reduction(reduction: Node, reshape: Node) -> Node | None:
    if (
        reshape.op_type != "Reshape"
        or not reduction.op_type.startswith("Reduce")
        or len(reduction.inputs) < 2
    ):
        return None
    keepdims = not reduction.attributes.get("keepdims", 1)
    if reshape.outputs[0].shape != _shape(reduction, keepdims=keepdims):
        return None
    return replace(
        reduction, outputs=reshape.outputs, attributes={**reduction.attributes, "keepdims": int(keepdims)}
    )


def _shape(reduction: Node, *, keepdims: bool) -> tuple[int, ...]:
    x, axes = reduction.inputs
    assert x is not None  # a reduction always names its input and its axes
    assert axes is not None
    reduced = {int(axis) for axis in axes.constant} if axes.constant is not None else set()
    return tuple(1 if i in reduced else n for i, n in enumerate(x.shape) if keepdims or i not in reduced)


def _turned_product(product: Node, transpose: Node) -> Node | None:
    is_product = product.op_type == "MatMul" or (product.op_type == "Gemm" and len(product.inputs) == 2)
    if transpose.op_type != "Transpose" or not is_product or product.outputs[0].rank != 2:
        return None
    a, b = product.inputs
    turned = {
        "transA": 1 - product.attributes.get("transB", 0),
        "transB": 1 - product.attributes.get("transA", 0),
    }
    attributes = {name: value for name, value in turned.items() if value}
    attributes |= {name: value for name, value in product.attributes.items() if name == "alpha"}
    return replace(
        product,
        op_type="Gemm" if attributes else "MatMul",
        inputs=(b, a),
        outputs=transpose.outputs,
        attributes=attributes,
    )


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
