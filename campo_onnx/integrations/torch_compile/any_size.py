"""A graph of any sizes, from graphs of some: the same nodes, and what depends on sizes as inputs.

Translations look at static sizes. So a graph of changing sizes is translated at a few that it meets; where
only constants and shapes tell the graphs apart, formulas are read off for those, and one graph is planned and
loaded for all sizes. Sizes outside of what was seen are translated too, and compared, before it runs at them.
"""

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, numpy_helper

from campo_onnx.integrations.torch_compile.formulas import (
    ArrayFormula,
    Formula,
    Sizes,
    array_formula_of,
    formula_of,
)

_LOG = logging.getLogger(__name__)

_FEWEST_EXAMPLES = 4
_MOST_EXAMPLES = 12
_MOST_GRAPHS = 4
_FEWEST_CHECKS = 3
"""Sizes at which a graph is compared with a translation although they lie within what was seen."""


class Example(NamedTuple):
    """A graph as translated at some sizes."""

    sizes: Sizes
    model: onnx.ModelProto


@dataclass(frozen=True, kw_only=True)
class AnySize:
    """A graph that differs from size to size in constants and shapes only.

    Parameters
    ----------
    model
        At the sizes of one example.
    constants
        Those of its initializers that depend on sizes.
    shapes
        Of every tensor of the graph.
    uses
        Which of the constants a node reads, by the places of the node and of the input.
    """

    model: onnx.ModelProto
    constants: Mapping[str, ArrayFormula]
    shapes: Mapping[str, tuple[Formula, ...]]
    uses: Mapping[tuple[int, int], str]

    def shape(self, tensor: str, sizes: Sizes) -> tuple[int, ...]:
        """Give the shape of a tensor at some sizes."""
        return tuple(int(n.at(sizes)) for n in self.shapes[tensor])

    def describes(self, example: Example) -> bool:
        """Whether a translation at other sizes is this graph."""
        if _skeleton(self.model) != _skeleton(example.model):
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
    if len({_skeleton(example.model) for example in examples}) > 1:
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


def _skeleton(model: onnx.ModelProto) -> Any:
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


def _has_bodies(model: onnx.ModelProto) -> bool:
    kinds = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    return any(a.type in kinds for node in model.graph.node for a in node.attribute)


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
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    arrays = _uses(model)
    own = {}
    for (at, place), name in varying.items():
        copy.graph.node[at].input[place] = name
        own[name] = arrays[at, place]
    read = {name for node in copy.graph.node for name in node.input}
    rest = [i for i in model.graph.initializer if i.name in read]
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(rest)
    copy.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in own.items())
    return copy


class Learner:
    """Learns the graph of any sizes from the sizes that a training meets.

    Parameters
    ----------
    plan
        Plans a graph and loads it for some sizes; an exception says that it cannot run at any.
    is_smooth
        Whether all sizes in the graph are polynomials of its symbols. Where they are not, what holds at some
        sizes may not hold between them, and each set is translated and compared.
    """

    def __init__(self, plan: Callable[[AnySize, Sizes], Any], *, is_smooth: bool) -> None:
        self._plan, self._is_smooth = plan, is_smooth
        self._examples: list[Example] = []
        self.planned: list[Any] = []
        self._graph: AnySize | None = None
        self._box: list[Sizes] = []
        self._checks = 0
        self._is_over = False

    def learn(self, example: Example) -> None:
        """Take one more translation in."""
        if self._is_over or any(e.sizes == example.sizes for e in self._examples):
            return
        self._is_over = _has_bodies(example.model) or len(self._examples) >= _MOST_EXAMPLES
        self._examples.append(example)
        alike = [e for e in self._examples if _skeleton(e.model) == _skeleton(example.model)]
        if self._is_over or len(alike) < _FEWEST_EXAMPLES:
            return
        graph = any_size(alike)
        if graph is None:
            return
        try:
            planned = self._plan(graph, alike[0].sizes)
        except Exception as error:
            _LOG.debug("a graph is compiled for each set of sizes", exc_info=error)
            self._is_over = True
            return
        self._graph, self._box, self._checks = graph, [e.sizes for e in alike], 0
        self.planned.append(planned)
        self._is_over = len(self.planned) >= _MOST_GRAPHS

    def holds_at(self, sizes: Sizes, translated: Callable[[], onnx.ModelProto]) -> bool:
        """Whether the last graph that was planned is the one of some sizes."""
        if self._graph is None:
            return False
        ends = [(min(column), max(column)) for column in zip(*self._box, strict=True)]
        inside = all(least <= n <= most for n, (least, most) in zip(sizes, ends, strict=True))
        if self._is_smooth and inside and self._checks >= _FEWEST_CHECKS:
            return True
        if not self._graph.describes(Example(sizes, translated())):
            return False
        self._box = [tuple(map(min, *self._box, sizes)), tuple(map(max, *self._box, sizes))]
        self._checks += 1
        return True
