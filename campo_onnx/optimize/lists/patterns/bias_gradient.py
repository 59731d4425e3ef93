"""ReduceSum that computes the gradient of a bias or scale: TensorFlow's BiasAddGrad, not Sum."""

from campo_onnx.ir.view import GraphView, OpNode
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import op_keys
from campo_onnx.ops.registry import having, moving
from campo_onnx.ops.spec import Movement
from campo_onnx.ops.values.traits import Trait
from campo_onnx.optimize.lists.op_class import OpClass
from campo_onnx.optimize.lists.patterns.findings import Finding, Findings

_SUMS = op_keys("ReduceSum com.microsoft:ReduceSumTraining")
_ACCUMULATORS = op_keys("com.microsoft:InPlaceAccumulator com.microsoft:InPlaceAccumulatorV2")
_SCALES = having(Trait.SCALES)
_ONE_TO_ONE = moving(Movement.VIEW, Movement.REORDER)


def bias_gradient(view: GraphView, update: frozenset[str]) -> Findings:
    """Find sums whose result only leaves the graph or feeds the weight update.

    A gradient builder sums every operand's gradient over the axes it was broadcast along; where
    there are none, the sum has one term and changes nothing.
    """
    classes: dict[str, tuple[OpClass, Finding]] = {}
    for node in view.nodes:
        if node.op not in _SUMS or not view.is_float32(node.outputs[0]):
            continue
        before = view.tensors[node.inputs[0]].elements
        after = view.tensors[node.outputs[0]].elements
        if not before or not after:
            continue
        if after == before:
            classes[node.name] = (OpClass.CLEAR, Finding.NO_SUM)
        elif _only_leaves(node.outputs[0], view, update):
            classes[node.name] = (OpClass.INFER, Finding.PARAMETER_SUM)
    return Findings(classes=classes)


def _only_leaves(tensor: str, view: GraphView, update: frozenset[str]) -> bool:
    walk, leaves = Walk([tensor]), False
    for summed in walk:
        leaves |= view.tensors[summed].is_output
        for use in view.consumers.get(summed, ()):
            consumer = view.node[use.node]
            if (
                consumer.name in update
                or consumer.op in _ACCUMULATORS
                or _unscales(consumer, use.position, view)
            ):
                leaves = True
            elif (
                consumer.op in _SUMS  # the batch, after each sample
                or (consumer.op in _ONE_TO_ONE and use.position == 0)
                or _scales(consumer, view)
            ):
                walk.add(consumer.outputs[:1])
            else:
                return False
    return leaves


def _unscales(node: OpNode, position: int, view: GraphView) -> bool:
    """Whether a node divides a gradient by the loss scale: a scalar that is not a constant."""
    if node.op not in _SCALES:
        return False
    other = node.inputs[1 - position]
    if view.is_constant(other) or view.tensors[other].elements != 1:
        return False
    if node.op.op_type == "Div":
        return position == 0
    producer = view.producer.get(other)
    return producer is not None and producer.op.label == "Reciprocal"


def _scales(node: OpNode, view: GraphView) -> bool:
    """Whether a node multiplies by one constant number."""
    return node.op.label == "Mul" and any(view.scalar(tensor) is not None for tensor in node.inputs)
