"""From a traced training step to an ONNX model: the loop that every framework's translator shares.

A framework's translator flattens what it traced into a :class:`TracedStep` and brings a table of
translations; which operations there are, what they read and where they come from is all that differs.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.builder.compact import cast
from campo_onnx.builder.graph import Graph
from campo_onnx.builder.value import Value
from campo_onnx.errors import UnsupportedModelError, is_foreign
from campo_onnx.export.batched_small_ops import side_by_side
from campo_onnx.export.translation import Expected, Table, UntranslatableError

Ref: TypeAlias = Hashable
"""A traced step's name of a tensor."""


class UntranslatedUseError(UnsupportedModelError):
    """An operation that has a translation is used in a way that has none.

    `results` are what the traced step calls its results; None for one that nothing reads.
    """

    results: Sequence[Ref | None] = ()


Read: TypeAlias = Callable[[Ref], Value]
"""Gives the value of a tensor that an operation reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A tensor whose value is known when the step is traced."""

    ref: Ref
    array: NDArray[Any] | np.generic


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of a traced step.

    `arguments` gives the operands and parameters for the translation, operands read through a :data:`Read`.
    """

    kind: Hashable
    place: str  # where it comes from, which is the first part of node names: ``encoder.query/grad``
    arguments: Callable[[Read], tuple[Sequence[Any], Mapping[str, Any]]]
    expected: Sequence[Expected | None]
    results: Sequence[Ref | None]  # what the step calls each result; None for one that nothing reads


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A training step as a straight line of operations.

    `inputs` has type and shape of each input of the graph by name, and what the step calls it.
    """

    inputs: Mapping[str, tuple[Ref, Expected]]
    body: Sequence[Constant | Operation]  # constants and operations, each behind what it reads
    outputs: Mapping[str, Ref]
    outermost: str  # what an operation without a place is in: ``the outermost module``


def refuse_unknown(operations: Iterable[tuple[Hashable, str]], table: Table, outermost: str) -> None:
    """Refuse operations that the table lacks, all in one message."""
    places: dict[str, str] = {}
    for kind, place in operations:
        if kind not in table:
            places.setdefault(str(kind), place)
    if places:
        kinds = ", ".join(f"{kind} (in {place or outermost})" for kind, place in places.items())
        raise UnsupportedModelError(
            f"no translation for {kinds}",
            remedy="Write that part with other operations, or report the operation.",
        )


def translate_step(
    step: TracedStep,
    table: Table,
    *,
    opset: int,
    sizes_change: bool = False,
    optional_inputs: frozenset[str],
    unchanged: Mapping[str, str] | None = None,
    updated: Collection[str] = (),
) -> onnx.ModelProto:
    """Write a traced step as a model.

    `unchanged` are outputs to leave out where they are what the input of this name is; where they are not,
    the input is there, whether something reads it or not. `updated` are outputs that are next values of
    inputs: small ones are computed together.
    """
    g = Graph(opset=opset, sizes_change=sizes_change)
    values: dict[Ref, Value] = {
        ref: _in_fp32(g, g.input(name, expected.dtype, expected.shape))
        for name, (ref, expected) in step.inputs.items()
    }
    for item in step.body:
        if isinstance(item, Constant):
            values[item.ref] = _in_fp32(g, g.constant(item.array))
            continue
        results = _translated(g, item, values.__getitem__, table, step.outermost)
        values.update((ref, results[i]) for i, ref in enumerate(item.results) if ref is not None)
    outputs = {name: values[ref] for name, ref in step.outputs.items()}
    same = unchanged or {}
    changed = {name: value for name, value in outputs.items() if value.name != same.get(name)}
    # A session feeds what a step returns, also where nothing reads it.
    fed = {same[name] for name in changed if name in same}
    small = [name for name in changed if name in updated]
    return g.model(side_by_side(g, changed, small), optional_inputs=optional_inputs - fed)


def _translated(g: Graph, item: Operation, read: Read, table: Table, outermost: str) -> dict[int, Value]:
    """Translate one operation; gives the results that something reads, by position."""
    where = f"{item.kind} (in {item.place or outermost})"
    try:
        with g.within(item.place):
            args, kwargs = item.arguments(read)
            if empty := _without_elements(g, item):
                return empty
            try:
                values_out = table[item.kind](g, _kept_in_fp32(item.expected[0]), *args, **kwargs)
            except UntranslatableError as error:
                raise UntranslatedUseError(
                    f"{where} cannot be translated", why=str(error), remedy=error.remedy
                ) from error
            except Exception as error:
                if is_foreign(error):
                    raise
                said = f"{type(error).__name__}: {error}".partition("\n")[0]
                raise UntranslatedUseError(
                    f"{where} cannot be translated", why=said, remedy="Please report it."
                ) from error
        results = [values_out] if isinstance(values_out, Value) else list(values_out)
        return {
            i: _checked(f"result {i} of {where}", _rounded(g, results[i], item.expected[i]), item.expected[i])
            for i, ref in enumerate(item.results)
            if ref is not None
        }
    except UntranslatedUseError as error:
        error.results = item.results
        raise


def _kept_in_fp32(expected: Expected | None) -> Expected | None:
    """Keep a tensor that the framework has in BF16 as the same numbers in FP32: few runtimes have BF16."""
    is_bf16 = expected is not None and expected.dtype == TensorProto.BFLOAT16
    return replace(expected, dtype=int(TensorProto.FLOAT)) if expected is not None and is_bf16 else expected


def _in_fp32(g: Graph, value: Value) -> Value:
    return cast(g, value, int(TensorProto.FLOAT)) if value.dtype == TensorProto.BFLOAT16 else value


def _rounded(g: Graph, value: Value | None, expected: Expected | None) -> Value | None:
    """Round a result as the framework does, which computes in FP32 and stores BF16."""
    if value is None or expected is None or expected.dtype != TensorProto.BFLOAT16:
        return value
    return _in_fp32(g, cast(g, value, int(TensorProto.BFLOAT16)))


def _without_elements(g: Graph, item: Operation) -> dict[int, Value]:
    """Give the results of an operation if none has elements: kernels fail there, or divide by 0."""
    read = {i: item.expected[i] for i, ref in enumerate(item.results) if ref is not None}
    empty = {i: e for i, e in read.items() if e is not None and 0 in e.shape}
    if len(empty) < len(read):
        return {}
    return {i: g.constant(np.zeros(e.shape, e.numpy_dtype)) for i, e in empty.items()}


def _checked(what: str, value: Value | None, expected: Expected | None) -> Value:
    """Refuse a result of another type or shape than the framework computed: a translation's last guard."""
    written = value and (value.dtype, value.shape)
    expected = _kept_in_fp32(expected)
    wished = expected and (expected.dtype, expected.shape)
    if value is None or written != wished:
        raise UntranslatedUseError(
            f"{what} comes out as {written} instead of {wished}",
            why="this use of the operation was never translated",
            remedy="Please report it.",
        )
    return value
