"""One graph for all sizes that a training meets, learned from the first ones.

Where formulas tell the graphs of some sizes apart, one graph is planned and loaded for all sizes. Sizes
beyond those seen are translated too, and compared, before it runs at them.
"""

import logging
from collections.abc import Callable
from typing import Any

import onnx
from onnx import AttributeProto

from campo_onnx.ir.sizes.any_size import AnySize, Example, any_size, skeleton
from campo_onnx.ir.sizes.formulas import Sizes

_LOG = logging.getLogger(__name__)

_FEWEST_EXAMPLES = 4
_MOST_EXAMPLES = 12
_MOST_GRAPHS = 4
_FEWEST_CHECKS = 3
"""Sizes at which a graph is compared with a translation although they lie within what was seen."""


class Learner:
    """Learns the graph of any sizes from the sizes that a training meets.

    `plan` plans a graph and loads it for some sizes; an exception says that it cannot run at any. `is_smooth`
    says whether all sizes in the graph are polynomials of its symbols. Where they are not, what holds at some
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
        alike = [e for e in self._examples if skeleton(e.model) == skeleton(example.model)]
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


def _has_bodies(model: onnx.ModelProto) -> bool:
    kinds = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    return any(a.type in kinds for node in model.graph.node for a in node.attribute)
