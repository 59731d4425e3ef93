"""Input and result of a rule of differentiation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from campo_onnx.builder.compact import reshape
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value


class NoRuleError(Exception):
    """An operator, or a use of one, that no rule differentiates. Errors are then measured by rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One node of the step whose results have a gradient."""

    op_type: str
    attributes: Mapping[str, Any]
    # inputs, outputs: values of the step, by position; None where omitted.
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    gradients: tuple[Value | None, ...]  # of the outputs; None where there is none

    def input(self, position: int) -> Value:
        """Give an input that every such node has."""
        value = self.inputs[position]
        assert value is not None
        return value

    @property
    def output(self) -> Value:
        """The first output."""
        assert self.outputs[0] is not None
        return self.outputs[0]

    @property
    def gradient(self) -> Value:
        """Gradient of the first output."""
        if self.gradients[0] is None:
            raise NoRuleError(f"{self.op_type}: only later results have a gradient")
        return self.gradients[0]


Rule: TypeAlias = Callable[[Graph, Call], Sequence[Value | None]]
"""Gradients of the inputs, by position; None, or the end of the sequence, where there is none."""


def total(g: Graph, x: Value, axes: Sequence[int], *, op_type: str = "ReduceSum") -> Value:
    """Sum along axes, which stay as axes of one element."""
    return g.op(op_type, x, g.integers(axes), keepdims=1) if axes else x


def of_shape(g: Graph, x: Value, shape: tuple[int, ...]) -> Value:
    """Sum a gradient over what broadcasting has repeated."""
    if x.shape == shape:
        return x
    extra = x.rank - len(shape)
    repeated = [i for i, size in enumerate(x.shape) if i < extra or (shape[i - extra] == 1 and size != 1)]
    return reshape(g, total(g, x, repeated), shape)
