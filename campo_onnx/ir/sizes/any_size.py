"""A graph of any sizes, from graphs of some: the same nodes, and what depends on sizes as inputs.

Translations look at static sizes. So a graph of changing sizes is translated at a few of them; where only
constants and shapes tell the graphs apart, formulas are read off for those.
"""

from collections.abc import Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.sizes.formulas import ArrayFormula, Formula, Sizes, array_formula_of, formula_of


class Example(NamedTuple):
    """A graph as translated at some sizes."""

    sizes: Sizes
    model: onnx.ModelProto


@dataclass(frozen=True, kw_only=True)
class AnySize:
    """A graph that differs from size to size in constants and shapes only."""

    model: onnx.ModelProto  # at the sizes of one example
    constants: Mapping[str, ArrayFormula]  # those of its initializers that depend on sizes
    shapes: Mapping[str, tuple[Formula, ...]]  # of every tensor of the graph
    # Which of the constants a node reads, by the places of the node and of the input.
    uses: Mapping[tuple[int, int], str]

    def shape(self, tensor: str, sizes: Sizes) -> tuple[int, ...]:
        """Give the shape of a tensor at some sizes."""
        return tuple(int(n.at(sizes)) for n in self.shapes[tensor])

    def describes(self, example: Example) -> bool:
        """Whether a translation at other sizes is this graph."""
        if skeleton(self.model) != skeleton(example.model):
            return False
        own, others = _uses(self.model), _uses(example.model)
        for place, array in others.items():
            if place in self.uses:
                if not self.constants[self.uses[place]].is_at(example.sizes, array):
                    return False
            elif not _equal(own[place], array):
                return False
        shapes = _shapes(example.model)
        return all(self.shape(name, example.sizes) == shape for name, shape in shapes.items())


def any_size(examples: Sequence[Example]) -> AnySize | None:
    """Find the graph of any sizes behind graphs of some; None where no formulas tell them apart."""
    sizes = [example.sizes for example in examples]
    if len({skeleton(example.model) for example in examples}) > 1:
        return None
    all_shapes = [_shapes(example.model) for example in examples]
    shapes: dict[str, tuple[Formula, ...]] = {}
    for name in all_shapes[0]:
        columns = zip(*(each[name] for each in all_shapes), strict=True)
        formulas = tuple(formula_of(column, sizes) for column in columns)
        if None in formulas:
            return None
        shapes[name] = tuple(f for f in formulas if f is not None)
    uses = [_uses(example.model) for example in examples]
    names: dict[Hashable, str] = {}
    constants: dict[str, ArrayFormula] = {}
    varying: dict[tuple[int, int], str] = {}
    for place in uses[0]:
        arrays = [each[place] for each in uses]
        if all(_equal(arrays[0], array) for array in arrays[1:]):
            continue
        key = tuple((a.dtype, a.shape, a.tobytes()) for a in arrays)
        if key not in names:
            formula = array_formula_of(arrays, sizes)
            if formula is None:
                return None
            names[key] = f"by_size.{len(names)}"
            constants[names[key]] = formula
        varying[place] = names[key]
    model = _renamed(examples[0].model, varying)
    return AnySize(model=model, constants=constants, shapes=shapes, uses=varying)


def _equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def skeleton(model: onnx.ModelProto) -> Any:
    """Give what must be the same at all sizes."""
    graph = model.graph
    initializers = {i.name: (i.data_type, len(i.dims)) for i in graph.initializer}
    nodes = tuple(
        (
            *(node.domain, node.op_type, node.name),
            tuple(initializers.get(name, name) for name in node.input),
            tuple(node.output),
            tuple(a.SerializeToString(deterministic=True) for a in node.attribute),
        )
        for node in graph.node
    )
    ends = tuple((v.name, v.type.tensor_type.elem_type) for v in (*graph.input, *graph.output))
    return nodes, ends, tuple(o.SerializeToString() for o in model.opset_import)


def _uses(model: onnx.ModelProto) -> dict[tuple[int, int], NDArray[Any]]:
    """Give the constants that nodes read, by the places of the node and of the input."""
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    return {
        (at, place): arrays[name]
        for at, node in enumerate(model.graph.node)
        for place, name in enumerate(node.input)
        if name in arrays
    }


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    graph = model.graph
    return {
        v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim)
        for v in (*graph.input, *graph.value_info, *graph.output)
    }


def _renamed(model: onnx.ModelProto, varying: Mapping[tuple[int, int], str]) -> onnx.ModelProto:
    """Give each constant that depends on sizes an initializer of its own."""
    copy = deepcopy(model)
    arrays = _uses(model)
    own = {}
    for (at, place), name in varying.items():
        copy.graph.node[at].input[place] = name
        own[name] = arrays[at, place]
    read = {name for node in copy.graph.node for name in node.input}
    rest = [i for i in model.graph.initializer if i.name in read]
    tensors = [numpy_helper.from_array(array, name) for name, array in own.items()]
    replace_items(copy.graph.initializer, [*rest, *tensors])
    return copy
