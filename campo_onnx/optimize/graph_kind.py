"""Kind of a graph: inference, gradients or a whole step; its precisions; whether it scales its loss."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from campo_onnx.ir.gradient_names import differentiated_tensor
from campo_onnx.ir.view import GraphView, OpNode, TensorKind
from campo_onnx.ir.walk import Walk
from campo_onnx.ops.key import MICROSOFT, op_keys
from campo_onnx.ops.precision import is_low_dtype
from campo_onnx.ops.registry import spec
from campo_onnx.ops.signature import Shape
from campo_onnx.ops.spec import Family
from campo_onnx.optimize.safety import BOUNDARY
from campo_onnx.optimize.updates import earlier_versions
from campo_onnx.optimize.values.loss_scale import loss_scaling

_PRODUCTS = frozenset({Family.MATRIX_PRODUCT, Family.CONVOLUTION, Family.RECURRENT, Family.ATTENTION})
_SAME_VALUES = op_keys("Cast Flatten Identity Pad Reshape Squeeze Transpose Unsqueeze")
_MOST_STEPS_BACK = 64
_MOST = 0.5
_LEAST_COVERED = 3  # fewer outputs have the shape of a weight by chance


class Form(StrEnum):
    """Part of training that a graph computes."""

    INFERENCE = "inference graph"
    GRADIENTS = "gradient graph"
    STEP = "whole training step"
    UPDATE = "weight update"
    UNKNOWN = "graph"


class Storage(StrEnum):
    """Precisions that a graph computes its products in."""

    FP32 = "in FP32"
    MIXED = "mixed already"
    LOW = "in low precision already"
    QUANTIZED = "quantized"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphKind:
    """Kind of a graph, and what follows from it."""

    form: Form = Form.UNKNOWN
    storage: Storage = Storage.FP32
    # Whether it scales its loss; None where there are no gradients, or no loss to scale.
    scales_loss: bool | None = None
    # Whether anything speaks for training: an output of a weight's shape, a loss. Of an inference graph it is
    # then not certain that it is one, and its loss and update are protected all the same.
    may_train: bool = True
    is_result: bool = False
    may_rise: bool = False  # whether what is low in it may become FP32 again (`lowering/widen.py`)

    @property
    def has_nothing_to_protect(self) -> bool:
        """Whether there is certainly neither a loss nor a weight update in it."""
        return self.form is Form.INFERENCE and not self.may_train

    @property
    def trains(self) -> bool:
        """Whether it computes gradients or new weights, as far as can be told."""
        return self.form is not Form.INFERENCE

    @property
    def title(self) -> str:
        """The kind in a few words.

        >>> GraphKind(form=Form.GRADIENTS, scales_loss=False).title
        'gradient graph in FP32, without a loss scale'
        """
        scale = {True: ", with a loss scale", False: ", without a loss scale", None: ""}[self.scales_loss]
        joined = ", " if self.storage is Storage.QUANTIZED else " "
        result = ", a result of campo-onnx" if self.is_result else ""
        return f"{self.form}{joined}{self.storage}{scale}{result}"

    @property
    def told(self) -> str:
        """The kind and what follows from it, in sentences."""
        title = self.title
        return " ".join((f"{title[:1].upper()}{title[1:]}.", *self.consequences))

    @property
    def consequences(self) -> tuple[str, ...]:
        """Consequences for planning, one sentence each."""
        told: list[str] = []
        if self.is_result:
            return ()
        if self.form is Form.INFERENCE:
            protects = "there is no loss to protect, " if self.has_nothing_to_protect else ""
            told.append(
                f"It returns no gradients and no new weights: {protects}weights may be stored in low "
                "precision, and `campo-onnx check` holds every output."
            )
        if self.storage in (Storage.MIXED, Storage.LOW):
            told.append(
                "It is planned both ways: nodes become FP32 where low precision does not pay, and low where "
                "it does. Inputs, outputs and stored weights keep their types."
                if self.may_rise
                else "What is in low precision stays as it is; only FP32 nodes are decided. Start from the "
                "FP32 file to plan all of it."
            )
        if self.storage is Storage.QUANTIZED:
            told.append("Quantized operators stay as they are; only FP32 nodes around them are decided.")
        return tuple(told)


def graph_kind(view: GraphView, *, is_result: bool = False) -> GraphKind:
    """Tell the kind of a graph from its structure.

    A graph trains if it holds gradient operators or hands gradients to a framework, if most of its weights
    have an output of their shape, or if one such output comes from a product that reads what the weight's
    own product reads: a gradient is that product with the error of its result. Names count only where ONNX
    Runtime's gradient builder gave them.
    """
    shapes = Counter(_shape(view, name) for name in _weights(view))
    returned = [name for name in view.outputs if _shape(view, name) in shapes]
    covered = sum((Counter(_shape(view, name) for name in returned) & shapes).values())
    trains = (
        any(map(_is_of_training, view.nodes))
        or any((differentiated_tensor(name) or "") in view.tensors for name in view.outputs)
        or (covered >= _LEAST_COVERED and covered >= _MOST * shapes.total())
        or _returns_gradients(view, returned)
        or _only_updates(view)
    )
    if not trains:
        may_train = covered > 0 or _has_loss(view)
        return GraphKind(
            form=Form.INFERENCE, storage=_storage(view), may_train=may_train, is_result=is_result
        )
    form = _form(view, returned)
    # What a framework hands in may be scaled or not.
    is_told = form is not Form.UPDATE and not any(node.op in BOUNDARY for node in view.nodes)
    scaling = loss_scaling(view) if is_told else None
    scales_loss = None if scaling is None or not scaling.forward else scaling.scale is not None
    return GraphKind(form=form, storage=_storage(view), scales_loss=scales_loss, is_result=is_result)


UNKNOWN_KIND = GraphKind()
"""Of a graph that nobody looked at."""


def _form(view: GraphView, returned: list[str]) -> Form:
    new = earlier_versions(view)
    weights_new = sum(name in new for name in returned)
    if not weights_new or 2 * weights_new < len(returned):
        return Form.GRADIENTS  # outputs that are new are running statistics
    return Form.STEP if _has_products(view) else Form.UPDATE


def _has_products(view: GraphView) -> bool:
    return any(spec(node.op).family in _PRODUCTS for node in view.nodes)


def _only_updates(view: GraphView) -> bool:
    """Whether a graph without products makes a new tensor of two inputs of its shape: weight and gradient."""
    return not _has_products(view) and any(len(earlier) > 1 for earlier in earlier_versions(view).values())


def _is_of_training(node: OpNode) -> bool:
    """Whether an operator exists in the backward pass only."""
    name = node.op.op_type
    return node.op in BOUNDARY or (name.endswith("Grad") and node.op.domain in ("", MICROSOFT))


def _has_loss(view: GraphView) -> bool:
    """Whether an output is called a loss, or an operator computes one."""
    return any("loss" in name.lower() for name in view.outputs) or any(
        spec(node.op).family is Family.LOSS for node in view.nodes
    )


def _shape(view: GraphView, tensor: str) -> Shape | None:
    """Shape of an FP32 tensor of more than one element; None of any other."""
    info = view.tensors.get(tensor)
    if info is None or not view.is_float32(tensor) or (info.elements or 0) < 2:
        return None
    return info.shape


def _weights(view: GraphView) -> Iterator[str]:
    """Constants, and inputs that no product reads where data belongs."""
    for name, info in view.tensors.items():
        if _shape(view, name) is None or info.kind is TensorKind.ACTIVATION:
            continue
        readers = [(view.node[use.node], use.position) for use in view.consumers.get(name, ())]
        is_data = any(position == 0 and spec(node.op).family in _PRODUCTS for node, position in readers)
        if readers and (info.kind is TensorKind.CONSTANT or not is_data):
            yield name


def _returns_gradients(view: GraphView, returned: list[str]) -> bool:
    """Whether a product that reads what a weight's product reads makes an output of the weight's shape."""
    read_with: dict[Shape | None, dict[str, set[str]]] = {}
    for node in view.nodes:
        if spec(node.op).family not in _PRODUCTS or len(node.inputs) < 2:
            continue
        bases = [view.origin(tensor, _SAME_VALUES) for tensor in node.inputs[:2]]
        for weight, other in (bases, bases[::-1]):
            if weight not in view.producer and (shape := _shape(view, weight)) is not None:
                read_with.setdefault(shape, {}).setdefault(other, set()).add(node.name)
    for output in returned:
        beside = read_with.get(_shape(view, output), {})
        for product in _products_behind(view, output):
            for tensor in product.inputs[:2]:
                if beside.get(view.origin(tensor, _SAME_VALUES), set()) - {product.name}:
                    return True
    return False


def _products_behind(view: GraphView, output: str) -> Iterator[OpNode]:
    """Yield the last products that an output is computed from."""
    walk = Walk([output])
    for tensor in walk:
        node = view.producer.get(tensor)
        if node is None:
            continue
        if spec(node.op).family in _PRODUCTS:
            yield node
            continue
        walk.add(filter(None, node.inputs))
        if len(walk.seen) > _MOST_STEPS_BACK:
            return


def _storage(view: GraphView) -> Storage:
    """Tell by what nodes compute in; Casts, which stand at the borders, compute nothing."""
    if any(spec(node.op).family is Family.QUANTIZATION for node in view.nodes):
        return Storage.QUANTIZED
    has_low = has_fp32 = False
    for node in view.nodes:
        if node.op.label == "Cast":
            continue
        types = [view.tensors[tensor].dtype for tensor in node.outputs if tensor in view.tensors]
        has_low |= any(map(is_low_dtype, types))
        has_fp32 |= any(view.is_float32(tensor) for tensor in node.outputs)
    if not has_low:
        return Storage.FP32
    return Storage.MIXED if has_fp32 else Storage.LOW
