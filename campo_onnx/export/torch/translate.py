"""From a flat graph of ATen operations to an ONNX model."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import torch

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export import interface
from campo_onnx.export.graph import Graph
from campo_onnx.export.torch import (
    elementwise,
    indexing,
    layout,
    linear,
    loss,
    normalization,
    pooling,
    random,
    reduction,
)
from campo_onnx.export.torch.convolution import WeightGradient
from campo_onnx.export.torch.convolution import translations as convolution
from campo_onnx.export.torch.origin import origin_of
from campo_onnx.export.torch.translation import DTYPES, Expected, Table, UntranslatableError
from campo_onnx.export.value import Value


def translations(weight_gradient: WeightGradient) -> Table:
    """Give every translation, by operation."""
    table: dict[Any, Any] = dict(convolution(weight_gradient))
    for room in (elementwise, indexing, layout, linear, loss, normalization, pooling, random, reduction):
        table |= room.TRANSLATIONS
    return table


def translate(
    traced: torch.fx.GraphModule, inputs: Sequence[str], outputs: Sequence[str], table: Table, *, opset: int
) -> onnx.ModelProto:
    """Write a traced step as a model.

    Parameters
    ----------
    traced
        A flat graph without mutation; one placeholder per input.
    inputs, outputs
        Their names.
    table
        The translations.
    opset
        Version of the standard operators.

    Raises
    ------
    UnsupportedModelError
        If an operation, or the way it is used, has no translation.
    """
    _refuse_unknown(traced, table)
    g = Graph(opset=opset)
    values: dict[torch.fx.Node, Any] = {}
    names = iter(inputs)
    results: Sequence[Value] = ()
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            meta = node.meta["val"]
            values[node] = g.input(next(names), DTYPES[meta.dtype], meta.shape)
        elif node.op == "get_attr":
            values[node] = g.constant(getattr(traced, node.target).detach().cpu().numpy())
        elif node.op == "output":
            results = torch.fx.node.map_arg(node.args[0], values.__getitem__)
        elif node.target is operator.getitem:
            values[node] = values[node.args[0]][node.args[1]]
        else:
            with g.within(origin_of(node).label):
                values[node] = _translated(g, node, values, table)
    return g.model(
        _changed(dict(zip(outputs, results, strict=True)), inputs),
        optional_inputs=frozenset(name for name in inputs if not name.startswith(("input.", "target."))),
    )


def _refuse_unknown(traced: torch.fx.GraphModule, table: Table) -> None:
    unknown: dict[str, str] = {}
    for node in traced.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        origin = origin_of(node)
        if node.target not in table:
            unknown.setdefault(str(node.target), origin.label)
        if node.target in random.RANDOM and origin.is_gradient:
            raise UnsupportedModelError(
                f"module {origin.scope!r} draws random numbers in its backward pass",
                why="the forward pass drew others, so the gradient would be wrong",
                remedy="Turn activation checkpointing off, or set the dropout in it to 0.",
            )
    if unknown:
        found = ", ".join(f"{op} (in {where or 'the outermost module'})" for op, where in unknown.items())
        raise UnsupportedModelError(
            f"no translation for {found}",
            remedy="Write that part of the module with other operations, or report the operation.",
        )


def _translated(g: Graph, node: torch.fx.Node, values: Mapping[torch.fx.Node, Any], table: Table) -> Any:
    args = torch.fx.node.map_arg(node.args, values.__getitem__)
    kwargs = torch.fx.node.map_arg(node.kwargs, values.__getitem__)
    metas = node.meta["val"]
    several = isinstance(metas, tuple | list)
    expected = [_expected(meta) for meta in (metas if several else [metas])]
    where = f"{node.target} (in {origin_of(node).label or 'the outermost module'})"
    try:
        made = table[node.target](g, expected[0], *args, **kwargs)
    except (UntranslatableError, onnx.shape_inference.InferenceError) as error:
        raise UnsupportedModelError(f"{where} cannot be translated", why=str(error)) from error
    results = [made] if isinstance(made, Value) else list(made)
    used = {user.args[1] for user in node.users} if several else {0}
    for i in used:
        _check_type(f"result {i} of {where}", results[i], expected[i])
    return results if several else results[0]


def _check_type(what: str, value: Value | None, expected: Expected | None) -> None:
    """Refuse a result of another type or shape than torch computed: the last guard of a translation."""
    found = value and (value.dtype, value.shape)
    wished = expected and (expected.dtype, expected.shape)
    if found is None or found != wished:
        raise UnsupportedModelError(
            f"{what} comes out as {found} instead of {wished}",
            why="this use of the operation was never translated",
            remedy="Please report it.",
        )


def _expected(meta: Any) -> Expected | None:
    if not isinstance(meta, torch.Tensor):
        return None
    if meta.dtype not in DTYPES:
        raise UnsupportedModelError(f"a tensor of type {meta.dtype} has no place in a training step")
    return Expected(dtype=DTYPES[meta.dtype], shape=tuple(int(n) for n in meta.shape))


def _changed(outputs: Mapping[str, Value], inputs: Sequence[str]) -> dict[str, Value]:
    """Leave out the buffers that are what they were."""
    buffers = [name.removeprefix("buf.") for name in inputs if name.startswith("buf.")]
    before = {interface.new_buffer(name): interface.buffer(name) for name in buffers}
    return {name: value for name, value in outputs.items() if value.name != before.get(name)}
