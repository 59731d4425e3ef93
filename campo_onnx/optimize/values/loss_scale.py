"""Loss scaling of a training graph: the scale, and where it is divided out of the gradients."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from campo_onnx.ir.memo import remembered
from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import having
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.safety import BOUNDARY, loss_output
from campo_onnx.optimize.updates import weight_update
from campo_onnx.optimize.values.walk import Labels

_ON_THE_WAY_OUT = having(Trait.ADDS, Trait.SCALES, Trait.SIGN) | op_keys(
    "Cast Clip Identity Reshape Squeeze Transpose Unsqueeze"
)
_LEAST_SCALE = 32.0
_QUOTIENTS = op_keys("Div Reciprocal")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaling:
    """Loss scaling of a graph's gradients."""

    forward: frozenset[str]
    # The scalar input or constant that multiplies the loss, or what a YieldOp brings in; None without any.
    scale: str | None
    # Tensors of one element whose size no constant tells, each with the input it comes from.
    scalars: Mapping[str, str]
    unscaled: frozenset[str]  # nodes behind the division by the scale


@remembered
def loss_scaling(view: GraphView) -> LossScaling:
    """Find the loss scale of a graph, and what is computed with it."""
    forward, update = _forward(view), weight_update(view)
    scale = _loss_scale(view, forward, update)
    scalars = _scalars_of_inputs(view)
    unscaled = _unscaled_nodes(view, scale, forward, scalars)
    if scale is None:
        scale, unscaled = _constant_scale(view, forward, update)
    return LossScaling(forward=forward, scale=scale, scalars=scalars, unscaled=unscaled)


def low_gradients(view: GraphView, scaling: LossScaling, low_nodes: Collection[str]) -> tuple[str, ...]:
    """Low nodes of the backward pass of a graph without a loss scale, in the order of the graph."""
    if scaling.scale is not None or not scaling.forward:
        return ()
    return tuple(n.name for n in view.nodes if n.name in low_nodes and n.name not in scaling.forward)


def gradient_outputs(view: GraphView, scaling: LossScaling) -> frozenset[str]:
    """Outputs of the backward pass and of the update; none in a graph without a loss."""
    outputs = (t for t in view.outputs if t in view.producer and scaling.forward)
    return frozenset(t for t in outputs if view.producer[t].name not in scaling.forward)


def _forward(view: GraphView) -> frozenset[str]:
    """Nodes that the loss is computed by; in a graph of ORTModule, what is handed to the framework."""
    loss = loss_output(view)
    handed_over = [t for node in view.nodes if node.op in BOUNDARY for t in node.inputs if t]
    return view.upstream(handed_over or ([] if loss is None else [loss]))


def _loss_scale(view: GraphView, forward: frozenset[str], update: frozenset[str]) -> str | None:
    """The scalar input that multiplies the loss alone, or the tensor that a YieldOp brings in."""
    for node in view.nodes:
        if node.op in BOUNDARY and any(node.outputs):
            return next(t for t in node.outputs if t)
    for name in view.inputs:
        info = view.tensors[name]
        is_scalar = view.is_float32(name) and info.kind is TensorKind.INPUT and info.elements == 1
        if is_scalar and _scales_gradients(name, view, forward, update):
            return name
    return None


def _scales_gradients(name: str, view: GraphView, forward: frozenset[str], update: frozenset[str]) -> bool:
    """Whether a scalar meets tensors behind the loss only, outside the update."""
    walk, meets = Walk([name]), False
    for tensor in walk:
        for use in view.consumers.get(tensor, ()):
            node = view.node[use.node]
            if node.name in update:
                continue
            if _makes_one_element(node, view):
                walk.add(filter(None, node.outputs))
            elif node.name in forward:
                return False
            else:
                meets = True
    return meets


def _makes_one_element(node: OpNode, view: GraphView) -> bool:
    return all(view.tensors[t].elements == 1 for t in node.outputs if t)


def _scalars_of_inputs(view: GraphView) -> Labels:
    """Tensors of one element that are computed from scalar inputs and constants, each with its input.

    A learning rate, a loss scale, its reciprocal: the graph does not tell how large they are.
    """
    scalars = Labels({t: t for t in view.inputs if view.is_float32(t) and view.tensors[t].elements == 1})
    for node in view.nodes:
        source = scalars.first(node.inputs)
        if (
            not source
            or not _makes_one_element(node, view)
            or not any(map(view.is_float32, node.outputs[:1]))
        ):
            continue
        if all(t in scalars or view.is_constant(t) for t in node.inputs if t):
            scalars.mark(node.outputs, source)
    return scalars


def _unscaled_nodes(
    view: GraphView, scale: str | None, forward: frozenset[str], scalars: Mapping[str, str]
) -> frozenset[str]:
    """Nodes behind the division by the loss scale: gradients have their own, small size again."""
    if scale is None or scale not in scalars:
        return frozenset()
    inverses: set[str] = set()
    unscaled: set[str] = set()
    nodes: set[str] = set()
    for node in view.nodes:
        if node.name in forward:
            continue
        divides = node.op in _QUOTIENTS and scalars.get(node.inputs[-1]) == scale
        divides = divides or not inverses.isdisjoint(node.inputs)
        if node.outputs and scalars.get(node.outputs[0]) == scale:
            if divides:
                inverses.update(filter(None, node.outputs))
        elif divides or not unscaled.isdisjoint(node.inputs):
            nodes.add(node.name)
            unscaled.update(filter(view.is_float32, node.outputs))
    return frozenset(nodes)


def _constant_scale(
    view: GraphView, forward: frozenset[str], update: frozenset[str]
) -> tuple[str | None, frozenset[str]]:
    """Find a loss scale that is a constant, and the nodes that divide it out of the gradients or come after.

    Whatever divides gradients by 32 and more where they leave the graph makes them small, so these nodes
    count even where no constant of that size multiplies the loss (it may have been folded into another).
    """
    if not forward:
        return None, frozenset()
    scalars = {
        name: abs(float(value.reshape(-1)[0]))
        for name, value in view.values.items()
        if view.is_float32(name) and value.size == 1
    }
    divided: dict[str, float] = {}
    leaving = _leaving(view, update)
    for node in view.nodes:
        if node.name in leaving and node.name not in forward and node.name not in update:
            factor = _divisor(node, scalars)
            if factor >= _LEAST_SCALE:
                divided[node.name] = factor
    if not divided:
        return None, frozenset()
    multiplied = {
        t: scalars[t] for n in view.nodes if n.name not in divided for t in n.inputs if t in scalars
    }
    factors = set(divided.values())
    scale = next((t for t, v in multiplied.items() if any(abs(v - f) <= 1e-3 * f for f in factors)), None)
    reached = {t for name in divided for t in view.node[name].outputs if t}
    nodes = set(divided)
    for node in view.nodes:
        if node.name not in nodes and not reached.isdisjoint(node.inputs):
            nodes.add(node.name)
            reached.update(filter(view.is_float32, node.outputs))
    return scale, frozenset(nodes)


def _divisor(node: OpNode, scalars: Mapping[str, float]) -> float:
    """By how much a node divides; 0 where it does not."""
    if node.op.label == "Div":
        return scalars.get(node.inputs[1], 0.0)
    if node.op.label == "Mul":
        factor = next((scalars[t] for t in node.inputs if t in scalars), 0.0)
        return 1.0 / factor if factor else 0.0
    return 0.0


def _leaving(view: GraphView, update: frozenset[str]) -> frozenset[str]:
    """Nodes whose results only leave the graph, moved or scaled on the way, or enter the weight update."""
    leaving: set[str] = set()
    for node in reversed(view.nodes):
        if node.op not in _ON_THE_WAY_OUT:
            continue
        uses = [use.node for t in node.outputs if t for use in view.consumers.get(t, ())]
        if all(name in leaving or name in update for name in uses):
            leaving.add(node.name)
    return frozenset(leaving)
