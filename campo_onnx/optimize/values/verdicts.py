"""Nodes that stay FP32, by every strategy, because a low precision would lose a value."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.values.range import ValueRange
from campo_onnx.optimize.plan.reason import Fact, Reason, Verdict
from campo_onnx.optimize.values.accumulated import accumulated, long_sums
from campo_onnx.optimize.values.accuracy import TooCoarse, needed_exactly
from campo_onnx.optimize.values.close import close_differences
from campo_onnx.optimize.values.differences import cancelling_squares
from campo_onnx.optimize.values.factors import shrunken_values
from campo_onnx.optimize.values.gradient_sums import gradient_products_summed, scaled_gradients_summed
from campo_onnx.optimize.values.loops import accumulating_outputs
from campo_onnx.optimize.values.loss_scale import LossScaling, loss_scaling
from campo_onnx.optimize.values.masks import unknown_masks
from campo_onnx.optimize.values.positions import angles, decided_inputs, largest_exact
from campo_onnx.optimize.values.products import unknown_products
from campo_onnx.optimize.values.ranges import DeclaredRange, value_ranges
from campo_onnx.optimize.values.sums import squares_summed
from campo_onnx.optimize.values.survival import LostValue, least_of, lost_values
from campo_onnx.optimize.values.vanishing import squares_of_slopes, vanishing_values


def value_verdicts(
    imported: Imported,
    ports: Mapping[str, Ports],
    low: Precision,
    declared: Mapping[str, DeclaredRange] = MappingProxyType({}),
) -> Mapping[str, Verdict]:
    """Find the nodes that would lose a value, whatever else is decided about them or about others.

    Parameters
    ----------
    imported, ports
        The graph, and what of each node changes type with it.
    low
        The low precision.
    declared
        Ranges of graph inputs.

    Returns
    -------
    mapping
        By node name; a node that reads several such values is told of the first.
    """
    view = imported.view
    ranges = value_ranges(imported, declared)
    scaling = loss_scaling(view)
    facts: dict[str, Fact]
    found = {
        name: _lost(view.node[name], lost, view, low)
        for name, lost in lost_values(view, ports, ranges, low).items()
    }
    for name, shrunken in shrunken_values(view, ranges, scaling.forward, least_of(low)).items():
        tensor, value = shrunken
        facts = {"tensor": tensor, "value": value, "low": low.value, "source": tensor}
        found.setdefault(name, Verdict(decided_by=Reason.VALUE_UNDERFLOW, facts=facts))
    vanishing = vanishing_values(view, ranges)
    for reason, tensors in (
        (Reason.LOGARITHM, vanishing.before_logarithms),
        (Reason.DIVISOR, vanishing.divisors),
        (Reason.SQUARES, squares_summed(view, ranges, low)),
        (Reason.SQUARE_OF_SLOPE, squares_of_slopes(view, ranges, low)),
        (Reason.CANCELLATION, cancelling_squares(view, ranges)),
        (Reason.ANGLE, angles(view, ranges)),
        (Reason.UNKNOWN_MASK, unknown_masks(view, declared, ranges, low)),
    ):
        for name, tensor in tensors.items():
            found.setdefault(name, Verdict(decided_by=reason, facts={"tensor": tensor}))
    for name, tensor in decided_inputs(view, ranges).items():
        facts = {"tensor": tensor, "largest": largest_exact(low), "low": low.value}
        found.setdefault(name, Verdict(decided_by=Reason.INTEGERS, facts=facts))
    for name, lost in _of_sums_and_accuracy(imported, ports, ranges, scaling.forward, low):
        found.setdefault(name, lost)
    for node in view.nodes:
        if node.name not in found and (
            verdict := _of_scalars(node, ports[node.name], view, scaling, declared)
        ):
            found[node.name] = verdict
    if scaling.scale is None:
        for name in gradient_products_summed(view, ranges, scaling.forward, low):
            found.setdefault(name, Verdict(decided_by=Reason.GRADIENT_PRODUCT))
    else:
        facts = {"tensor": scaling.scale, "low": low.value}
        for name in scaled_gradients_summed(view, scaling.forward, scaling.unscaled, low):
            found.setdefault(name, Verdict(decided_by=Reason.SCALED_SUM, facts=facts))
    return found


def _lost(node: OpNode, lost: LostValue, view: GraphView, low: Precision) -> Verdict:
    facts: dict[str, Fact] = {"tensor": lost.tensor, "value": lost.value, "low": low.value}
    if lost.is_attribute or view.tensors[lost.tensor].kind is TensorKind.CONSTANT:
        return Verdict(decided_by=Reason.OVERFLOW if lost.overflows else Reason.UNDERFLOW, facts=facts)
    if lost.is_integer:
        facts = {"tensor": lost.tensor, "largest": largest_exact(low), "low": low.value}
        return Verdict(decided_by=Reason.INTEGERS, facts=facts)
    if lost.is_rounded:
        return Verdict(decided_by=Reason.VALUE_ROUNDING, facts=facts | {"source": lost.source})
    reason = Reason.VALUE_OVERFLOW if lost.overflows else Reason.VALUE_UNDERFLOW
    return Verdict(decided_by=reason, facts=facts | {"source": lost.source})


def _of_sums_and_accuracy(
    imported: Imported,
    ports: Mapping[str, Ports],
    ranges: Mapping[str, ValueRange],
    forward: frozenset[str],
    low: Precision,
) -> Iterator[tuple[str, Verdict]]:
    view = imported.view
    for name, tensor in unknown_products(view, ranges, low).items():
        yield name, Verdict(decided_by=Reason.PRODUCT, facts={"tensor": tensor, "low": low.value})
    sums = accumulated(view, ranges, forward, accumulating_outputs(imported.model, view))
    for name, terms in long_sums(view, ranges, sums, low).items():
        yield name, Verdict(decided_by=Reason.LONG_SUM, facts={"terms": terms, "low": low.value})
    close = close_differences(view, ranges, sums, low)
    for name, coarse in needed_exactly(view, ports, ranges, low, close).items():
        yield name, _too_coarse(coarse, low)


def _too_coarse(coarse: TooCoarse, low: Precision) -> Verdict:
    facts: dict[str, Fact] = {"tensor": coarse.tensor, "reader": coarse.reader, "low": low.value}
    facts |= {"allowed": coarse.allowed, "rounding": coarse.rounding}
    return Verdict(decided_by=Reason.ACCURACY, facts=facts)


def _of_scalars(
    node: OpNode,
    ports: Ports,
    view: GraphView,
    scaling: LossScaling,
    declared: Mapping[str, DeclaredRange],
) -> Verdict | None:
    if node.name in scaling.unscaled:
        return Verdict(decided_by=Reason.UNSCALED, facts={"tensor": scaling.scale or ""})
    for position in sorted(ports.low_inputs):
        scalar = scaling.scalars.get(node.inputs[position])
        if scalar is not None and scalar not in declared:
            return Verdict(decided_by=Reason.SCALAR_INPUT, facts={"tensor": scalar})
    return None
