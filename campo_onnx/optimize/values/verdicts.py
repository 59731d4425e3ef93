"""Nodes that stay FP32, by every strategy, because a low precision would lose a value."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import GraphView
from campo_onnx.ops.ports import NO_FP32, Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.values.accuracy import needed_exactly
from campo_onnx.optimize.values.close import close_differences
from campo_onnx.optimize.values.gradient_sums import (
    gradient_products_summed,
    products_summed,
    scaled_gradients_summed,
)
from campo_onnx.optimize.values.graph_values import GraphValues, Verdicts, computed_numbers, fixed_tensors
from campo_onnx.optimize.values.loss_scale import loss_scaling
from campo_onnx.optimize.values.masks import unknown_masks
from campo_onnx.optimize.values.products import unknown_products
from campo_onnx.optimize.values.ranges import DeclaredRange, value_ranges
from campo_onnx.optimize.values.removed_means import means_removed
from campo_onnx.optimize.values.sizes import far_reaching, shrunken_values
from campo_onnx.optimize.values.squared_distances import cancelling_squares
from campo_onnx.optimize.values.sums import Accumulated, long_sums, squares_summed
from campo_onnx.optimize.values.survival import lost_values
from campo_onnx.optimize.values.unrolled import unrolled
from campo_onnx.optimize.values.vanishing import before_logarithms, divisors, squares_of_slopes
from campo_onnx.optimize.values.walk import Labels

_RANK_OF_ROWS = 2


def value_verdicts(
    imported: Imported,
    ports: Mapping[str, Ports],
    low: Precision,
    declared: Mapping[str, DeclaredRange] = MappingProxyType({}),
) -> Mapping[str, Verdict]:
    """Find the nodes that would lose a value, whatever else is decided about them or about others.

    A node that reads several such values is told of the first.
    """
    graph = unrolled(imported)
    view, ranges = graph.imported.view, value_ranges(imported, declared)
    fixed = fixed_tensors(view)
    values = GraphValues(
        view=view,
        ports={node.name: ports.get(node.name, NO_FP32) for node in view.nodes},
        ranges=ranges,
        low=low,
        scaling=loss_scaling(view),
        declared=declared.keys(),
        needs=graph.needs,
        loops=graph.terms,
        fixed=fixed,
        computed=computed_numbers(fixed, ranges),
    )
    verdicts: dict[str, Verdict] = {}
    for rule in RULES:
        for name, verdict in rule(values):
            verdicts.setdefault(name, verdict)
    return verdicts


def _means(values: GraphValues) -> Verdicts:
    removed = means_removed(values)
    for name, tensor in {**products_summed(values, removed), **removed}.items():
        yield name, Reason.REMOVED_MEAN.of(tensor=tensor)


def _products(values: GraphValues) -> Verdicts:
    if not values.is_narrow:
        return
    for name, tensor in {**far_reaching(values), **unknown_products(values)}.items():
        yield name, Reason.PRODUCT.of(tensor=tensor, low=values.low.value)


def _long_and_exact(values: GraphValues) -> Verdicts:
    sums, low = Accumulated(values), values.low.value
    for name, terms in long_sums(values, sums).items() if values.is_narrow else ():
        yield name, Reason.LONG_SUM.of(terms=terms, low=low)
    yield from needed_exactly(values, {**values.needs, **close_differences(values, sums)}).items()


def _scalars(values: GraphValues) -> Verdicts:
    scaling, view = values.scaling, values.view
    rows = Labels(scaling.scalars)  # numbers of whole rows, too, which round alike in all of them
    for node in view.nodes:
        if node.name in scaling.unscaled:
            yield node.name, Reason.UNSCALED.of(tensor=scaling.scale or "")
            continue
        numbers = [t for t in node.inputs if view.is_float32(t) and not values.is_constant(t)]
        makes_rows = rows.keys() >= {*numbers} and all(_is_row(t, view) for t in node.outputs if t)
        if makes_rows and numbers:
            rows.mark(filter(view.is_float32, node.outputs), rows[numbers[0]])
        for position in sorted(values.ports[node.name].low_inputs):
            tensor = node.inputs[position]
            scalar = rows.get(tensor)
            if scalar is None or scalar in values.declared:
                continue
            if makes_rows or tensor in scaling.scalars:
                yield node.name, Reason.SCALAR_INPUT.of(tensor=scalar)


def _is_row(tensor: str, view: GraphView) -> bool:
    """Whether a tensor has one number for each row."""
    shape = view.shape(tensor)
    return shape is not None and (len(shape) < _RANK_OF_ROWS or shape[-1] == 1)


def _gradients(values: GraphValues) -> Verdicts:
    scale = values.scaling.scale
    if not values.is_narrow:
        return
    if scale is None:
        unscaled = Reason.GRADIENT_PRODUCT.of()
        if not values.scaling.forward:  # no loss, so that nothing says that it is a gradient
            unscaled = Reason.VANISHING_PRODUCT.of(low=values.low.value)
        for name in gradient_products_summed(values):
            yield name, unscaled
    else:
        for name in scaled_gradients_summed(values):
            yield name, Reason.SCALED_SUM.of(tensor=scale, low=values.low.value)


def _tensors(
    reason: Reason, search: Callable[[GraphValues], Mapping[str, str]], *, only_narrow: bool = False
) -> Callable[[GraphValues], Verdicts]:
    """A rule that a search for tensors, by node name, makes."""

    def rule(values: GraphValues) -> Verdicts:
        for name, tensor in search(values).items() if values.is_narrow or not only_narrow else ():
            yield name, reason.of(tensor=tensor)

    return rule


RULES: tuple[Callable[[GraphValues], Verdicts], ...] = (
    lost_values,
    shrunken_values,
    _tensors(Reason.LOGARITHM, before_logarithms),
    _tensors(Reason.DIVISOR, divisors),
    _tensors(Reason.SQUARES, squares_summed, only_narrow=True),
    _tensors(Reason.SQUARE_OF_SLOPE, squares_of_slopes, only_narrow=True),
    _tensors(Reason.CANCELLATION, cancelling_squares),
    _means,
    _tensors(Reason.UNKNOWN_MASK, unknown_masks),
    _products,
    _long_and_exact,
    _scalars,
    _gradients,
)
"""The searches in order: of a node that several of them tell of, the first gives the reason."""
