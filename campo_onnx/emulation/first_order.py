"""Errors of all roundings at once, to first order: gradients of the outputs times what each rounding moves.

The squared error that a rounding adds alone is ``|J d|^2``: ``d`` is what it does to its tensor, ``J`` the
derivative of the outputs, each divided by the size of its kind. For a direction ``v`` of independent signs
``(v . J d)^2`` is expected to be just that, and ``v . J d = g . d`` with the gradient ``g`` of ``v``. So one
step with its gradients estimates every rounding (:mod:`campo_onnx.emulation.adjoint.reverse`).

Over a few directions such squares vary much. Where roundings of single elements are independent of each
other, ``sum g^2 d^2`` has the same expectation and varies little. It is taken unless the squares contradict
it, as they do where a tensor repeats a value: then its elements are all moved by the same share.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto
from scipy.stats import chi2

from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.emulation.adjoint.reverse import ROUNDING, Reverse
from campo_onnx.emulation.adjoint.rule import NoRuleError
from campo_onnx.emulation.drift import Reference
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.problem import Problem
from campo_onnx.optimize.roundings import Rounding

DIRECTIONS = 3
"""Directions of the outputs on each batch, unless told otherwise."""

_OVERFLOWS = float(np.finfo(np.float64).max)

_CONTRADICTS = 1e-3
"""Improbability that squares must have, if elements were independent, for them to be believed instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOrder:
    """A step with gradients, which tells two numbers of each rounding for a direction."""

    # The graph: the step, its gradients, and as outputs `g . d` and `sum g^2 d^2` of each rounding.
    model: ModelProto
    # Names of the two, by rounding; a rounding that reaches no output is not there.
    outputs: Mapping[Rounding, tuple[str, str]]
    directions: Mapping[str, str]  # the input that has the direction of an output, by output

    @property
    def digest(self) -> str:
        """Of the graph."""
        return hashlib.sha256(self.model.SerializeToString()).hexdigest()

    def sums(self, reference: Reference, seed: int) -> dict[Rounding, list[float]]:
        """Run the step on a batch with one direction, and give both sums of each rounding.

        Sums that are not finite are NumPy's largest: rounding overflows.
        """
        rng = np.random.default_rng(seed)
        feeds: dict[str, NDArray[Any]] = dict(reference.feeds)
        for output, share in reference.shares.items():
            signs = 2.0 * rng.integers(0, 2, reference.outputs[output].shape) - 1.0
            feeds[self.directions[output]] = (signs * share).astype(np.float32)
        values = dict(reference.run(self.model, feeds))
        return {
            rounding: [_finite(values[name]) for name in names] for rounding, names in self.outputs.items()
        }


def first_order(problem: Problem, references: Sequence[Reference], every: Sequence[Rounding]) -> FirstOrder:
    """Write the step with the gradients that roundings need.

    Raises NoRuleError if a node has no rule, or an output counts for infinitely much.
    """
    shares = references[0].shares
    if not all(math.isfinite(share) for one in references for share in one.shares.values()):
        raise NoRuleError("a kind of outputs that is zero")
    directions = {output: f"direction_of/{output}" for output in shares}
    reverse = Reverse(references[0].model, problem.view, directions)
    outputs: dict[str, Value] = {}
    names: dict[Rounding, tuple[str, str]] = {}
    for index, rounding in enumerate(every):
        gradient = _gradient(reverse, rounding, problem)
        if gradient is None:
            continue
        scope = f"{ROUNDING}/{index}"
        names[rounding] = f"{scope}/sum", f"{scope}/squares"
        with reverse.graph.within(scope):
            moved = _moved(reverse.graph, reverse.value(rounding.tensor), problem.low)
            terms = gradient * moved
            for name, op_type in zip(names[rounding], ("ReduceSum", "ReduceSumSquare"), strict=True):
                outputs[name] = reverse.graph.op(op_type, terms, keepdims=0)
    return FirstOrder(model=reverse.model(outputs), outputs=names, directions=directions)


def _gradient(reverse: Reverse, rounding: Rounding, problem: Problem) -> Value | None:
    """Give the gradient of the tensor as those read it who read it rounded."""
    if rounding.producer is not None:
        return reverse.gradient(rounding.tensor)
    assert rounding.reader is not None
    node = problem.view.node[rounding.reader]
    parts = [
        reverse.gradient(rounding.tensor, (node.name, position))
        for position in sorted(problem.ports[node.name].low_inputs)
        if node.inputs[position] == rounding.tensor
    ]
    result = None
    for part in parts:
        if part is not None:
            result = part if result is None else result + part
    return result


def _moved(g: Graph, x: Value, low: Precision) -> Value:
    """By how much rounding moves each element."""
    stored = g.op("Cast", x, to=low.onnx_dtype)
    return g.op("Cast", stored, to=TensorProto.FLOAT) - x


def _finite(value: NDArray[Any]) -> float:
    return float(value) if np.isfinite(value) else _OVERFLOWS


def squared_error(sums: Sequence[Sequence[float]]) -> float:
    """Estimate the squared error of a rounding from its sums over directions.

    >>> squared_error([(0.1, 0.02), (-0.2, 0.03)])  # squares of 0.01 and 0.04 fit what independence says
    0.025
    >>> squared_error([(1.0, 0.02), (-2.0, 0.03)])  # these do not
    2.5
    """
    if any(_OVERFLOWS in pair for pair in sums):
        return math.inf
    count = len(sums)
    squares = math.fsum(a * a for a, _ in sums) / count
    independent = math.fsum(b for _, b in sums) / count
    if independent == 0.0 or squares == 0.0:
        return squares
    ratio = count * squares / independent
    return independent if min(chi2.cdf(ratio, count), chi2.sf(ratio, count)) > _CONTRADICTS else squares
