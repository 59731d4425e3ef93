"""From a jaxpr to an ONNX model."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax.extend import core

from campo_onnx.builder.value import dtype_of
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.fourier import Complex
from campo_onnx.export.jax import arrays, complex_numbers, composed, elementwise, lookups, random, windows
from campo_onnx.export.translate import Constant, Operation, Read, TracedStep, refuse_unknown, translate_step
from campo_onnx.export.translation import Expected, merged

TRANSLATIONS = merged(family.TRANSLATIONS for family in (arrays, elementwise, lookups, random, windows))

_OUTERMOST = "the outermost scope"
_CALLS = frozenset(
    {
        *("checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"),
        *("custom_vjp_call_jaxpr", "jit", "pjit", "remat", "remat2"),
    }
)
_BRANCHES = "cond"
"""Of functions, one: which is a number; all are computed."""

_LINEAR_SOLVE = "custom_linear_solve"
_CONTROL_FLOW = frozenset({"while"})
_WITH_FUNCTIONS = _CALLS.union((_BRANCHES, _LINEAR_SOLVE, "scan"))
Ref: TypeAlias = "int | Complex"
"""Name of a tensor; of a complex one those of its parts."""

_WITHOUT_EFFECT = frozenset(
    {
        "is_stable",  # every sort is
        "memory_space",
        *("accuracy", "precision"),  # how exact a result is at least
        *("indices_are_sorted", "unique_indices"),  # promises of the caller
        *("out_sharding", "sharding"),  # where the result lies
        *("update_consts", "update_jaxpr"),  # of a scatter: how two values combine, which its name says
    }
)
"""Parameters of any primitive that do not change what it computes."""

_SAID_BY_THE_RESULT: Mapping[str, Sequence[str]] = {
    "argmax": ("index_dtype",),
    "argmin": ("index_dtype",),
    "bitcast_convert_type": ("new_dtype",),
    "broadcast_in_dim": ("shape",),
    "conv_general_dilated": ("preferred_element_type",),
    "convert_element_type": ("new_dtype", "weak_type"),
    "dot_general": ("preferred_element_type",),
    "empty2": ("dtype", "shape"),
    "expand_dims": ("dimensions",),
    "iota": ("dtype", "shape"),
    "random_bits": ("shape",),
    "reshape": ("new_sizes",),
    "squeeze": ("dimensions",),
}
"""Parameters that say of which type or shape a result is."""

_TRANSFORMS = re.compile(r"\b(?:jvp|transpose|vmap|remat|checkpoint|jit|pjit)\(|[()]")


def translate(closed: Any, inputs: Sequence[str], outputs: Sequence[str], *, opset: int) -> onnx.ModelProto:
    """Write a closed jaxpr as a model."""
    line = _StraightLine()
    variables = closed.jaxpr.invars
    for name, variable in [
        *zip(inputs, variables, strict=True),
        *zip(outputs, closed.jaxpr.outvars, strict=True),
    ]:
        if _is_complex(variable):
            raise complex_numbers.refused(f"{name!r} is complex")
    refs = [line.fresh() for _ in variables]
    results = line.add(closed.jaxpr, closed.consts, refs, "")
    operations = [item for item in line.body if isinstance(item, Operation)]
    refuse_unknown(((each.kind, each.place) for each in operations), TRANSLATIONS, _OUTERMOST)
    step = TracedStep(
        inputs={n: (ref, _expected(v)) for n, ref, v in zip(inputs, refs, variables, strict=True)},
        body=line.body,
        outputs=dict(zip(outputs, results, strict=True)),
        outermost=_OUTERMOST,
    )
    keys = {n for n, v in zip(inputs, variables, strict=True) if _is_key(v.aval)}
    _refuse_key_results(outputs, [variable.aval for variable in closed.jaxpr.outvars])
    model = translate_step(step, TRANSLATIONS, opset=opset, optional_inputs=frozenset(keys))
    if any(name.startswith(random.KEY) for node in model.graph.node for name in node.input) or any(
        value.name.startswith(random.KEY) for value in model.graph.output
    ):
        _refuse_key("a number")
    return model


def _refuse_key_results(outputs: Sequence[str], kinds: Sequence[Any]) -> None:
    for name, kind in zip(outputs, kinds, strict=True):
        if _is_key(kind):
            _refuse_key(f"the result {name!r}")


def _refuse_key(what: str) -> None:
    raise UnsupportedModelError(
        f"{what} is made of a random key",
        why="ONNX Runtime draws numbers of its own, and a graph has no keys",
        remedy="Leave keys out of what the step returns, in flax with nnx.state(x, nnx.Not(nnx.RngState)).",
    )


def _called(equation: Any) -> tuple[Any, Sequence[Any]] | None:
    if equation.primitive.name not in _CALLS:
        return None
    parameters = equation.params
    called = next(parameters[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in parameters)
    return (called.jaxpr, called.consts) if hasattr(called, "jaxpr") else (called, ())


def _composed(equation: Any) -> tuple[Any, Sequence[Any]] | None:
    operands = [atom.val if isinstance(atom, core.Literal) else atom.aval for atom in equation.invars]
    closed = composed.traced(equation.primitive.name, operands, _parameters(equation))
    return None if closed is None else (closed.jaxpr, closed.consts)


class _StraightLine:
    """Equations one after the other, those of called functions in place of the call, loops unrolled."""

    def __init__(self) -> None:
        self.body: list[Constant | Operation] = []
        self._numbers = count()
        self._known: dict[Ref, Any] = {}

    def fresh(self) -> int:
        """Give a name to a tensor: a function that is called twice has the same variables both times."""
        return next(self._numbers)

    def add(self, jaxpr: Any, constants: Sequence[Any], arguments: Iterable[Ref], scope: str) -> list[Ref]:
        """Add a function's equations; gives its results."""
        refs: dict[Any, Ref] = dict(zip(jaxpr.invars, arguments, strict=True))
        refs |= {v: self._constant(c) for v, c in zip(jaxpr.constvars, constants, strict=True)}

        def ref(atom: Any) -> Ref:
            if isinstance(atom, core.Literal):
                return self._constant(np.asarray(atom.val, atom.aval.dtype))
            return refs[atom]

        for equation in jaxpr.eqns:
            operands = [ref(atom) for atom in equation.invars]
            inside = _scope(scope, str(equation.source_info.name_stack))
            in_parts = equation.primitive.name not in _WITH_FUNCTIONS and any(
                map(_is_complex, (*equation.invars, *equation.outvars))
            )
            inner = None if in_parts else _called(equation) or _composed(equation)
            if equation.primitive.name in _CONTROL_FLOW:
                raise UnsupportedModelError(
                    f"control flow cannot be exported: {equation.primitive.name} (in {inside or _OUTERMOST})",
                    why="the graph of a training step is one straight line",
                    remedy="Choose with jnp.where; loops of a known length are unrolled.",
                )
            if equation.primitive.name == _BRANCHES:
                results = self._chosen(equation, operands, inside)
            elif equation.primitive.name == "scan":
                results = self._unrolled(equation, operands, inside)
            elif equation.primitive.name == _LINEAR_SOLVE:
                results = self._solved(equation, operands, inside)
            elif in_parts:
                results = self._in_parts(equation, operands, inside)
            elif inner is not None:
                results = self.add(*inner, operands, inside)
            elif _is_of_keys(equation) and self._are_constant(operands):
                results = self._computed(equation, operands)
            else:
                name, variables = equation.primitive.name, equation.outvars
                results = self._new(name, operands, _parameters(equation), variables, inside)
            refs.update(zip(equation.outvars, results, strict=True))
        return [ref(atom) for atom in jaxpr.outvars]

    def _in_parts(self, equation: Any, operands: Sequence[Ref], scope: str) -> list[Ref]:
        """Add an operation on complex numbers as operations on their parts; JAX computes one of constants."""
        sizes = [[v.aval.size for v in variables] for variables in (equation.invars, equation.outvars)]
        if sizes[0] and max(sizes[1]) <= max(sizes[0]) and self._are_constant(operands):
            return self._computed(equation, operands)
        simplest = [self._simplest(ref) for ref in operands]
        types = [*map(_type, equation.invars, simplest)]
        closed, kinds = complex_numbers.traced(
            equation.primitive, types, equation.params, scope or _OUTERMOST
        )
        parts = iter(self.add(closed.jaxpr, closed.consts, jax.tree.leaves(simplest), scope))
        results: list[Ref] = []
        for variable, kind in zip(equation.outvars, kinds, strict=True):
            ref: Ref = Complex(next(parts), next(parts)) if isinstance(kind, Complex) else next(parts)
            is_short = _is_complex(variable) and not isinstance(ref, Complex)
            results.append(
                Complex(ref, self._constant(np.zeros(kind.shape, kind.dtype))) if is_short else ref
            )
        return results

    def _are_constant(self, operands: Sequence[Ref]) -> bool:
        return all(part in self._known for part in jax.tree.leaves(list(operands)))

    def _simplest(self, ref: Ref) -> Ref:
        """Give a complex number whose imaginary part is constant zeros as its real part."""
        if (
            isinstance(ref, Complex)
            and ref.imaginary in self._known
            and not np.any(self._known[ref.imaginary])
        ):
            return ref.real
        return ref

    def _unrolled(self, equation: Any, operands: Sequence[Ref], scope: str) -> list[Ref]:
        """Add a loop's body once a turn."""
        p = equation.params
        body, first = p["jaxpr"], p["num_consts"] + p["num_carry"]
        if p["length"] * len(body.jaxpr.eqns) > arrays.MOST_OPERATIONS:
            raise UnsupportedModelError(
                f"a loop of {p['length']} turns (in {scope or _OUTERMOST}) is too long to be unrolled",
                remedy="Shorten it, or write it as operations on the whole sequence.",
            )
        shared, carry = operands[: p["num_consts"]], list(operands[p["num_consts"] : first])
        rows = body.jaxpr.invars[first:]
        turns = range(p["length"])[:: -1 if p["reverse"] else 1]
        stacked: dict[int, list[Ref]] = {}
        for turn in turns:
            pairs = zip(operands[first:], rows, strict=True)
            own = [self._new(arrays.ROW, [ref], {"turn": turn}, [row], scope)[0] for ref, row in pairs]
            results = self.add(body.jaxpr, body.consts, [*shared, *carry, *own], scope)
            carry, stacked[turn] = results[: p["num_carry"]], results[p["num_carry"] :]
        stacks = equation.outvars[p["num_carry"] :]
        return carry + [
            self._new(arrays.STACK, [stacked[turn][i] for turn in sorted(stacked)], {}, [variable], scope)[0]
            for i, variable in enumerate(stacks)
        ]

    def _solved(self, equation: Any, operands: Sequence[Ref], scope: str) -> list[Ref]:
        """Add the function that solves; the product that it inverts is there for derivatives."""
        counts, solve = equation.params["const_lengths"], equation.params["jaxprs"].solve
        first = counts.matvec + counts.vecmat
        arguments = [*operands[first : first + counts.solve], *operands[sum(counts) :]]
        return self.add(solve.jaxpr, solve.consts, arguments, scope)

    def _chosen(self, equation: Any, operands: Sequence[Ref], scope: str) -> list[Ref]:
        """Add every branch, and choose among their results; of those for platforms, the one for any."""
        which, *arguments = operands
        if platforms := equation.params.get("branches_platforms"):
            branch = equation.params["branches"][composed.place_of_platform(platforms)]
            return self.add(branch.jaxpr, branch.consts, arguments, scope)
        branches = [self.add(b.jaxpr, b.consts, arguments, scope) for b in equation.params["branches"]]
        return [
            self._new(arrays.CHOICE, [which, *cases], {}, [variable], scope)[0]
            for variable, *cases in zip(equation.outvars, *branches, strict=True)
        ]

    def _computed(self, equation: Any, operands: Sequence[Ref]) -> list[Ref]:
        """Let JAX compute what keys make that are constant."""
        values = (
            self._known[o.real] + 1j * self._known[o.imaginary] if isinstance(o, Complex) else self._known[o]
            for o in operands
        )
        results = equation.primitive.bind(*values, **equation.params)
        return [self._constant(r) for r in (results if equation.primitive.multiple_results else [results])]

    def _new(
        self,
        kind: str,
        operands: Sequence[Ref],
        parameters: Mapping[str, Any],
        variables: Sequence[Any],
        scope: str,
    ) -> list[Ref]:
        by_part: list[list[int]] = []
        for place in range(2 if any(map(_is_complex, variables)) else 1):
            by_part.append([self.fresh() for _ in variables])
            own = [ref[place] if isinstance(ref, Complex) else ref for ref in operands]
            self.body.append(
                Operation(
                    kind=kind,
                    place=scope,
                    arguments=partial(_arguments, own, parameters),
                    expected=[_expected(variable) for variable in variables],
                    results=by_part[-1],
                )
            )
        return [*map(Complex, *by_part)] if len(by_part) > 1 else [*by_part[0]]

    def _constant(self, array: Any) -> Ref:
        if np.iscomplexobj(array):
            return Complex(self._constant(np.real(array)), self._constant(np.imag(array)))
        ref = self.fresh()
        self._known[ref] = array
        # A key is not an array, and only what makes other keys of it reads it.
        is_key = hasattr(array, "dtype") and jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
        self.body.append(
            Constant(ref=ref, array=np.zeros(array.shape, np.uint32) if is_key else np.asarray(array))
        )
        return ref


def _arguments(operands: Sequence[int], parameters: Mapping[str, Any], read: Read) -> tuple[Any, Any]:
    return [read(ref) for ref in operands], parameters


def _parameters(equation: Any) -> Mapping[str, Any]:
    """Give the parameters that a translation must read: one that it does not know is refused there."""
    redundant = _SAID_BY_THE_RESULT.get(equation.primitive.name, ())
    return {k: v for k, v in equation.params.items() if k not in _WITHOUT_EFFECT and k not in redundant}


def _is_of_keys(equation: Any) -> bool:
    makes_keys = equation.primitive.name in random.KEYS
    return makes_keys or any(hasattr(v.aval, "dtype") and _is_key(v.aval) for v in equation.invars)


def _is_key(aval: Any) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jax.dtypes.prng_key))


def _is_complex(variable: Any) -> bool:
    return bool(jnp.issubdtype(variable.aval.dtype, np.complexfloating))


def _type(atom: Any, ref: Ref) -> Any:
    """Give the type of an operand, or the value of a constant; of a complex one as its parts go."""
    if isinstance(atom, core.Literal):
        value = np.asarray(atom.val, atom.aval.dtype)
        return Complex(value.real, value.imag) if isinstance(ref, Complex) else value.real
    if not _is_complex(atom):
        return atom.aval
    part = jax.core.ShapedArray(atom.aval.shape, jnp.finfo(atom.aval.dtype).dtype)
    return Complex(part, part) if isinstance(ref, Complex) else part


def _expected(variable: Any) -> Expected:
    if _is_key(variable.aval):
        return Expected(dtype=dtype_of(np.uint32), shape=tuple(variable.aval.shape))
    kind = variable.aval.dtype
    real = jnp.finfo(kind).dtype if _is_complex(variable) else kind
    return Expected(dtype=dtype_of(real), shape=tuple(variable.aval.shape))


def _scope(outer: str, stack: str) -> str:
    """Turn ``transpose(jvp(encoder))/query`` into ``encoder/query/grad``."""
    is_gradient = "transpose(" in stack or outer.endswith("grad")
    parts = [*outer.removesuffix("grad").split("/"), *_TRANSFORMS.sub("", stack).split("/")]
    return "/".join([*(part for part in parts if part), *(["grad"] if is_gradient else [])])
