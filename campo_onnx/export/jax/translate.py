"""From a jaxpr to an ONNX model."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import jax
import numpy as np
import onnx
from jax.extend import core

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.jax import arrays, elementwise, windows
from campo_onnx.export.translate import Constant, Operation, Read, TracedStep, refuse_unknown, translate_step
from campo_onnx.export.translation import Expected, merged
from campo_onnx.export.value import dtype_of

TRANSLATIONS = merged([arrays.TRANSLATIONS, elementwise.TRANSLATIONS, windows.TRANSLATIONS])

_OUTERMOST = "the outermost scope"
_CALLS = frozenset(
    {
        *("checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"),
        *("custom_vjp_call_jaxpr", "jit", "pjit", "remat", "remat2"),
    }
)
_CONTROL_FLOW = frozenset({"cond", "scan", "switch", "while"})
_TRANSFORMS = re.compile(r"\b(?:jvp|transpose|vmap|remat|checkpoint|jit|pjit)\(|[()]")


def translate(closed: Any, inputs: Sequence[str], outputs: Sequence[str], *, opset: int) -> onnx.ModelProto:
    """Write a closed jaxpr as a model.

    Parameters
    ----------
    closed
        What ``jax.make_jaxpr`` returns.
    inputs, outputs
        Names of its arguments and results.
    opset
        Version of the standard operators.

    Raises
    ------
    UnsupportedModelError
        If a primitive, or the way it is used, has no translation.
    """
    found = list(_primitives(closed.jaxpr, ""))
    if flow := sorted({name for name, _ in found} & _CONTROL_FLOW):
        raise UnsupportedModelError(
            f"control flow cannot be exported: {', '.join(flow)}",
            why="the graph of a training step is one straight line",
            remedy="Write loops in Python, which unrolls them, and choose with jnp.where.",
        )
    refuse_unknown((row for row in found if row[0] not in _CALLS), TRANSLATIONS, _OUTERMOST)
    line = _StraightLine()
    variables = closed.jaxpr.invars
    refs = [line.fresh() for _ in variables]
    results = line.add(closed.jaxpr, closed.consts, refs, "")
    step = TracedStep(
        inputs={n: (ref, _expected(v)) for n, ref, v in zip(inputs, refs, variables, strict=True)},
        body=line.body,
        outputs=dict(zip(outputs, results, strict=True)),
        outermost=_OUTERMOST,
    )
    return translate_step(step, TRANSLATIONS, opset=opset, optional_inputs=frozenset())


def _primitives(jaxpr: Any, scope: str) -> Iterator[tuple[str, str]]:
    for equation in jaxpr.eqns:
        inside = _scope(scope, str(equation.source_info.name_stack))
        yield equation.primitive.name, inside
        inner = _called(equation)
        if inner is not None:
            yield from _primitives(inner[0], inside)


def _called(equation: Any) -> tuple[Any, Sequence[Any]] | None:
    if equation.primitive.name not in _CALLS:
        return None
    parameters = equation.params
    called = next(parameters[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in parameters)
    return (called.jaxpr, called.consts) if hasattr(called, "jaxpr") else (called, ())


class _StraightLine:
    """Equations one after the other, those of called functions in place of the call."""

    def __init__(self) -> None:
        self.body: list[Constant | Operation] = []
        self._numbers = count()

    def fresh(self) -> int:
        """Give a name to a tensor: a function that is called twice has the same variables both times."""
        return next(self._numbers)

    def add(self, jaxpr: Any, constants: Sequence[Any], arguments: Iterable[int], scope: str) -> list[int]:
        """Add a function's equations; gives its results."""
        refs: dict[Any, int] = dict(zip(jaxpr.invars, arguments, strict=True))
        refs |= {v: self._constant(np.asarray(c)) for v, c in zip(jaxpr.constvars, constants, strict=True)}

        def ref(atom: Any) -> int:
            if isinstance(atom, core.Literal):
                return self._constant(np.asarray(atom.val, atom.aval.dtype))
            return refs[atom]

        for equation in jaxpr.eqns:
            operands = [ref(atom) for atom in equation.invars]
            inside = _scope(scope, str(equation.source_info.name_stack))
            inner = _called(equation)
            if inner is None:
                results = self._operation(equation, operands, inside)
            else:
                results = self.add(*inner, operands, inside)
            refs.update(zip(equation.outvars, results, strict=True))
        return [ref(atom) for atom in jaxpr.outvars]

    def _constant(self, array: Any) -> int:
        ref = self.fresh()
        self.body.append(Constant(ref=ref, array=array))
        return ref

    def _operation(self, equation: Any, operands: Sequence[int], scope: str) -> list[int]:
        results = [self.fresh() for _ in equation.outvars]
        self.body.append(
            Operation(
                kind=equation.primitive.name,
                place=scope,
                arguments=partial(_arguments, operands, _parameters(equation)),
                expected=[_expected(variable) for variable in equation.outvars],
                results=results,
            )
        )
        return results


def _arguments(operands: Sequence[int], parameters: Mapping[str, Any], read: Read) -> tuple[Any, Any]:
    return [read(ref) for ref in operands], parameters


def _parameters(equation: Any) -> Mapping[str, Any]:
    return {k: v for k, v in equation.params.items() if not isinstance(v, jax.sharding.Sharding)}


def _expected(variable: Any) -> Expected:
    return Expected(dtype=dtype_of(variable.aval.dtype), shape=tuple(variable.aval.shape))


def _scope(outer: str, stack: str) -> str:
    """Turn ``transpose(jvp(encoder))/query`` into ``encoder/query/grad``."""
    is_gradient = "transpose(" in stack or outer.endswith("grad")
    parts = [*outer.removesuffix("grad").split("/"), *_TRANSFORMS.sub("", stack).split("/")]
    return "/".join([*(part for part in parts if part), *(["grad"] if is_gradient else [])])
