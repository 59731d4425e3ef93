"""Sums of gradients that a low precision gets wrong: without a loss scale, with a large one, of products."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import current
from campo_onnx.ops.spec import Family
from campo_onnx.optimize.canonical import contracted_terms
from campo_onnx.optimize.values.graph_values import GraphValues
from campo_onnx.optimize.values.sum_ops import (
    MOVES,
    MOVES_AND_PARTS,
    MOVES_AND_SIGNS,
    NORMALIZED,
    SCALED,
    SCALES,
    SUMS,
    WEIGHTED,
    is_mean,
    is_sum,
    leading_to_sums,
    summed_input,
    terms_of,
)
from campo_onnx.optimize.values.walk import Labels

_TERMS_OF_A_BATCH = 1 << 16
_MULTIPLES = SCALED | MOVES_AND_PARTS | op_keys("Concat Pad")


def gradient_products_summed(values: GraphValues) -> frozenset[str]:
    """Find products of a gradient and an activation that are summed, in a graph without a loss scale.

    Unscaled gradients lie close to the smallest value FP16 holds; times an activation well below 1 (a
    probability of attention) most of them become zero, where FP32 would have summed them. A product with
    a normalized activation, a deviation from the mean that is about to be, or a mask loses little that
    the gradient itself has not lost.
    """
    view, forward = values.view, values.scaling.forward
    leads_on = leading_to_sums(values)
    by_hand = _sums_by_hand(view, forward)
    nodes = set()
    for node in view.nodes:
        if node.op.label != "Mul" or node.name in forward:
            continue
        product = node.outputs[0]
        if product not in by_hand and (product not in leads_on or not _only_summed(product, view)):
            continue
        if all(_may_be_small(t, values) for t in node.inputs) and node.inputs[0] != node.inputs[1]:
            nodes.add(node.name)
            if product in by_hand:
                nodes.update(use.node for use in view.consumers[product])
    return frozenset(nodes)


def _only_summed(tensor: str, view: GraphView) -> bool:
    """Whether nothing but sums reads a tensor: else it is a gradient itself, and low elsewhere anyway."""
    walk = Walk([tensor])
    for moved in walk:
        for use in view.consumers.get(moved, ()):
            node = view.node[use.node]
            if node.op in MOVES:
                walk.add(node.outputs[:1])
            elif node.op not in SUMS:
                return False
    return True


def _sums_by_hand(view: GraphView, forward: frozenset[str]) -> frozenset[str]:
    """Products that are added to each other, one by one, and whose sum leaves the graph."""
    products: set[str] = set()
    sums: set[str] = set()
    for node in reversed(view.nodes):
        if node.name in forward or node.op.label not in ("Add", "Sum"):
            continue
        if all(_only_leaves(t, view, sums) for t in node.outputs if t):
            sums.add(node.name)
            producers = ((t, view.producer.get(t)) for t in node.inputs)
            products.update(t for t, p in producers if p is not None and p.op.label == "Mul")
    return frozenset(t for t in products if all(use.node in sums for use in view.consumers.get(t, ())))


def _only_leaves(tensor: str, view: GraphView, sums: set[str]) -> bool:
    """Whether a tensor is an output of the graph that nothing but further sums reads."""
    uses = view.consumers.get(tensor, ())
    return all(use.node in sums for use in uses) and (bool(uses) or view.tensors[tensor].is_output)


def _may_be_small(tensor: str, values: GraphValues) -> bool:
    view, r = values.view, values.range(tensor)
    if view.tensors[tensor].kind is not TensorKind.ACTIVATION or not view.is_float32(tensor):
        return False
    if r.from_integers or r.is_guard or not r.varies:
        return False
    producer = view.producer.get(view.origin(tensor, MOVES))
    if producer is None:
        return False
    if producer.op in SCALES:  # (x - mean) * (1 / deviation)
        return not any(values.range(t).is_guard for t in producer.inputs)
    if producer.op.label == "Sub":  # x - mean
        return not _comes_from_mean(producer.inputs[1], view)
    return producer.op not in NORMALIZED


def _comes_from_mean(tensor: str, view: GraphView) -> bool:
    producer = view.producer.get(view.origin(tensor, MOVES))
    if producer is None:
        return False
    if producer.op in SCALES:  # a sum over many, divided by their number
        total = view.producer.get(view.origin(producer.inputs[0], MOVES))
        return total is not None and total.op in SUMS
    return producer.op.label == "ReduceMean" or producer.op in NORMALIZED


def scaled_gradients_summed(values: GraphValues) -> frozenset[str]:
    """Find sums over many values of gradients that carry a loss scale: the sum overflows before they do.

    The loss scaler would answer with a smaller scale, and small gradients would vanish elsewhere. A sum of
    sums counts what both take in: where each sample is summed first, only the sum over the batch is meant.
    """
    view = values.view
    others = values.scaling.forward | values.scaling.unscaled
    nodes: set[str] = set()
    summed: dict[str, int] = {}  # values that are summed in an element, by tensor
    for node in view.nodes:
        if node.name in others or not node.inputs:
            continue
        terms = summed.get(node.inputs[0], 1)
        if node.op in SUMS and not is_mean(node):
            terms *= terms_of(node, view)
            if terms >= _TERMS_OF_A_BATCH:
                nodes.add(node.name)
        elif node.op not in MOVES_AND_SIGNS:
            continue
        if terms > 1:
            summed[node.outputs[0]] = terms
    return frozenset(nodes)


def products_summed(values: GraphValues, removed: Mapping[str, str]) -> Mapping[str, str]:
    """Find products for each sample that are summed, of a tensor whose mean over samples has been taken off.

    The gradient of a weight is such a sum where a product for each sample takes less time than one of all.
    Whatever the samples of the other factor have in common is in each product, and cancels in the sum; the
    rounding of a product does not. One product of all samples would add up in FP32. Factors whose own mean
    has been taken off have little in common.

    `removed` names the nodes that compute such means, and the tensors that are left.
    """
    view, nodes = values.view, Labels()
    means: dict[str, int] = {}  # elements of the smallest mean, by the tensor that is left
    for name, centered in removed.items():
        if is_sum(view.node[name], values):
            elements = view.tensors[view.node[name].outputs[0]].elements or 0
            means[centered] = min(elements, means.get(centered, elements))
    functions = _functions_of(means, view) if means else frozenset[str]()
    for node in view.nodes if means else ():
        tensor = summed_input(node, view) or ""
        product = view.producer.get(view.origin(tensor, MOVES))
        if product is None or product.op not in WEIGHTED:
            continue
        terms = terms_of(node, view) * contracted_terms(product, view)
        for factor, other in zip(product.inputs[:2], product.inputs[1::-1], strict=True):
            for centered in () if other in functions else means.keys() & _multiples(factor, view):
                # Zeros around an image add a few terms to those of all samples and positions.
                if means[centered] * terms < 2 * (view.tensors[centered].elements or 0):
                    nodes.mark((node.name, *_back_to(product, tensor, view)), centered)
    return nodes


def _functions_of(tensors: Iterable[str], view: GraphView) -> AbstractSet[str]:
    """The tensors that are computed element by element of some tensors alone, and of rows and constants."""
    specs, functions = current(), set(tensors)
    for node in view.nodes:
        if specs.spec(node.op).family is Family.ELEMENTWISE or node.op in _MULTIPLES:
            wide = _wide(node, view)
            functions.update(node.outputs if wide and functions.issuperset(wide) else ())
    return functions


def _multiples(tensor: str, view: GraphView) -> AbstractSet[str]:
    """The tensors that one is computed of by moves and by factors that are the same for many elements."""
    walk = Walk([tensor])
    for one in walk:
        node = view.producer.get(one)
        wide = [] if node is None or node.op not in _MULTIPLES else _wide(node, view)
        walk.add(wide if len(wide) == 1 else ())
    return walk.seen


def _wide(node: OpNode, view: GraphView) -> list[str]:
    """The inputs of a node that have the most elements, but for constants."""
    sizes = {t: view.tensors[t].elements or 0 for t in node.inputs if t and view.is_float32(t)}
    return [t for t, size in sizes.items() if size == max(sizes.values()) and not view.is_constant(t)]


def _back_to(product: OpNode, tensor: str, view: GraphView) -> Iterator[str]:
    """The names of a product and of the nodes that move what it computes."""
    yield product.name
    while tensor not in product.outputs:
        node = view.producer[tensor]
        yield node.name
        tensor = node.inputs[0]
