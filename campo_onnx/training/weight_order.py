"""Parameters kept in the order in which a graph reads them and makes their gradients.

A step may transpose a weight before its products and the gradient after its own. For an update, which treats
all elements of a tensor alike, that makes no difference: a session that owns both keeps each parameter with
its axes in the order that takes the fewest Transposes, and its gradient in the shape that a product has (a
Reshape that makes an output of a graph is a copy). Outside the session both are as the graph declares them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.sort import fresh, name_nodes, tensor_names
from campo_onnx.ir.view import GraphView
from campo_onnx.training.axis_order import Axes, Reading, Term, Tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredForm:
    """Form in which a session keeps a parameter."""

    order: tuple[int, ...]  # the parameter's axes in the order in which they lie
    gradient_shape: tuple[int, ...]  # shape of the output that holds its gradient, in the same order


def kept_as_read(
    model: onnx.ModelProto, view: GraphView, gradients: Mapping[str, str | None]
) -> tuple[onnx.ModelProto, dict[str, StoredForm]]:
    """Declare parameters and gradients as the graph reads and makes them.

    `gradients` has, by input that holds a parameter, the output that holds its gradient, or None. The
    computation is the same, with other shapes of inputs and outputs, and fewer Transposes and Reshapes. With
    it comes how a parameter is kept, by input; those that stay as they are declared are not there.
    """
    shapes = {name: view.shape(name) or () for name in gradients}
    sizes = {name: {i: n for i, n in enumerate(shape) if n > 1} for name, shape in shapes.items()}
    readings = {
        name: readers for name in sizes if (readers := Tracer(view=view, sizes=sizes[name]).readings(name))
    }
    found_readings = (reading for readers in readings.values() for reading in readers)
    taken = frozenset(node for reading in found_readings for node in reading.made_by(view))
    edits = _Edits(model=model, view=view)
    layouts: dict[str, StoredForm] = {}
    for name, readers in readings.items():
        tracer = Tracer(view=view, sizes=sizes[name], taken=taken)
        how = _keep(edits, tracer, name, readers, gradients[name])
        if how is not None:
            layouts[name] = how
    return (edits.applied() if layouts else model), layouts


def _keep(
    edits: "_Edits", tracer: Tracer, name: str, readings: Sequence[Reading], output: str | None
) -> StoredForm | None:
    view, declared = tracer.view, tuple(tracer.sizes)
    shape = view.shape(name) or ()
    gradient = None
    if output is not None:
        # What else reads a gradient wants it as it is declared.
        gradient = tracer.gradient(output) if output not in view.consumers else None
        if gradient is None or view.shape(output) != shape:
            return None
    wanted = [axes for reading in readings for axes in set(reading.axes.values())]
    wanted += [] if gradient is None else [term.axes for term in gradient.leaves()]
    best = min([declared, *wanted], key=lambda axes: sum(other != axes for other in wanted))
    order = (*best, *(axis for axis in range(len(shape)) if axis not in best))
    if best == declared:
        order = tuple(range(len(shape)))
    stored = tuple(shape[axis] for axis in order)
    if best != declared:
        for reading in readings:
            edits.read(reading, order, shape)
        edits.declare(name, stored)
    gradient_shape = stored
    if gradient is not None and output is not None:
        if gradient.node is None and gradient.axes == best:
            gradient_shape = edits.rename(gradient, output)
        elif best != declared:
            edits.write(gradient, output, order, shape)
    if stored == shape == gradient_shape and best == declared:
        return None
    return StoredForm(order=order, gradient_shape=gradient_shape)


@dataclass(kw_only=True)
class _Edits:
    """Changes to a graph, made at once."""

    model: onnx.ModelProto
    view: GraphView
    _before: defaultdict[str, list[NodeProto]] = field(default_factory=lambda: defaultdict(list))
    _after: defaultdict[str, list[NodeProto]] = field(default_factory=lambda: defaultdict(list))
    _gone: set[str] = field(default_factory=set)
    _inputs: dict[tuple[str, str], str] = field(default_factory=dict)  # by node and what it read
    _outputs: dict[str, str] = field(default_factory=dict)
    _shapes: dict[str, Sequence[int]] = field(default_factory=dict)
    _constants: list[onnx.TensorProto] = field(default_factory=list)

    def declare(self, name: str, shape: Sequence[int]) -> None:
        """Give an input or output of the graph another shape."""
        self._shapes[name] = shape

    def read(self, reading: Reading, order: Sequence[int], shape: Sequence[int]) -> None:
        """Make what is read of a parameter that lies in another order."""
        root = reading.root
        self._gone |= reading.between
        self._shapes[root] = [shape[axis] for axis in order]
        turned: dict[Axes, str] = {tuple(axis for axis in order if shape[axis] > 1): root}
        for node in self.view.nodes:
            tensor = node.outputs[0] if node.name in reading.between else root
            if tensor not in reading.axes or (tensor == root and node.name not in reading.readers):
                continue
            lies, before = reading.axes[tensor], self._before[node.name]
            if lies not in turned:
                to = _in_full(lies, shape)
                turned[lies] = self._new(f"{root}/{'_'.join(map(str, to))}")
                before.append(_transpose(root, turned[lies], [order.index(i) for i in to]))
            if tensor != root:
                before.append(self._reshape(turned[lies], tensor, self.view.shape(tensor) or ()))
            elif turned[lies] != root:
                self._inputs[node.name, root] = turned[lies]

    def rename(self, gradient: Term, output: str) -> tuple[int, ...]:
        """Let the tensor that a gradient is made of be the output; gives its shape."""
        if gradient.tensor != output:
            self._gone |= set(gradient.between)
            self._outputs[gradient.tensor] = output
            self.declare(output, self.view.shape(gradient.tensor) or ())
        return self.view.shape(gradient.tensor) or ()

    def write(self, gradient: Term, output: str, order: Sequence[int], shape: Sequence[int]) -> None:
        """Make a gradient that lies in another order."""
        self._gone |= set(gradient.nodes())
        self.declare(output, [shape[axis] for axis in order])
        after = self._after[self.view.producer[output].name]
        if gradient.tensor == output and gradient.node is None:
            self._outputs[output] = self._new(f"{output}/made")
            gradient = replace(gradient, tensor=self._outputs[output])
        after += self._term(gradient, output, order, shape)

    def _term(
        self, term: Term, output: str, order: Sequence[int], shape: Sequence[int]
    ) -> Iterator[NodeProto]:
        if term.node is not None:
            node_copy = NodeProto()
            node_copy.CopyFrom(self._protos[term.node.name])
            node_copy.output[:] = [output]
            for i, each in enumerate(term.terms):
                if each is not None:
                    node_copy.input[i] = self._new(f"{output}/{i}")
                    yield from self._term(each, node_copy.input[i], order, shape)
            yield node_copy
        elif term.axes == tuple(axis for axis in order if shape[axis] > 1):
            yield self._reshape(term.tensor, output, [shape[axis] for axis in order])
        else:
            lies, apart = _in_full(term.axes, shape), self._new(f"{output}/apart")
            yield self._reshape(term.tensor, apart, [shape[axis] for axis in lies])
            yield _transpose(apart, output, [lies.index(axis) for axis in order])

    @cached_property
    def _protos(self) -> dict[str, NodeProto]:
        return {node.name: node for node in self.model.graph.node}

    @cached_property
    def _names(self) -> set[str]:
        return tensor_names(self.model.graph)

    def _new(self, stem: str) -> str:
        return fresh(stem, self._names)

    def _reshape(self, tensor: str, output: str, shape: Sequence[int]) -> NodeProto:
        constant = numpy_helper.from_array(np.asarray(shape, np.int64), self._new(f"{output}/shape"))
        self._constants.append(constant)
        return helper.make_node("Reshape", [tensor, constant.name], [output])

    def applied(self) -> onnx.ModelProto:
        """Make them."""
        changed = deepcopy(self.model)
        graph = changed.graph
        old_nodes, nodes = list(graph.node), []
        for node in old_nodes:
            nodes += self._before[node.name]
            if node.name not in self._gone:
                node.input[:] = [self._inputs.get((node.name, name), name) for name in node.input]
                node.output[:] = [self._outputs.get(name, name) for name in node.output]
                nodes.append(node)
            nodes += self._after[node.name]
        replace_items(graph.node, nodes)
        name_nodes(graph)
        graph.initializer.extend(self._constants)
        tensors = {name for node in nodes for name in node.output} - self._shapes.keys()
        replace_items(graph.value_info, [info for info in graph.value_info if info.name in tensors])
        for info in (*graph.input, *graph.output):
            if info.name in self._shapes:
                dtype = info.type.tensor_type.elem_type
                info.CopyFrom(helper.make_tensor_value_info(info.name, dtype, self._shapes[info.name]))
        return changed


def _in_full(axes: Axes, shape: Sequence[int]) -> tuple[int, ...]:
    """Put in the axes of size 1: where they were if the order is as declared, else behind."""
    if list(axes) == sorted(axes):
        return tuple(range(len(shape)))
    return (*axes, *(axis for axis in range(len(shape)) if axis not in axes))


def _transpose(tensor: str, output: str, perm: Sequence[int]) -> NodeProto:
    return helper.make_node("Transpose", [tensor], [output], perm=perm)
