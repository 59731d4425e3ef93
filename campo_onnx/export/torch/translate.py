"""From a flat graph of ATen operations to an ONNX model."""

import operator
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import onnx
import torch

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.torch import (
    batch_norm,
    elementwise,
    extremes,
    indexing,
    layout,
    loss,
    normalization,
    pooling,
    products,
    random,
    rectifier,
    reduction,
)
from campo_onnx.export.torch.operands import DTYPES
from campo_onnx.export.torch.origin import Origin, mark, origin_of
from campo_onnx.export.translate import Constant, Operation, Read, TracedStep, refuse_unknown, translate_step
from campo_onnx.export.translation import Expected, Table, merged
from campo_onnx.step import naming as step_naming

_OUTERMOST = "the outermost module"
_FAMILIES = (
    batch_norm, elementwise, extremes, indexing, layout, loss, normalization, pooling, products, random,
    rectifier, reduction,
)  # fmt: skip


TRANSLATIONS: Table = merged([family.TRANSLATIONS for family in _FAMILIES])
"""Every translation, by operation."""


def translate(
    traced: torch.fx.GraphModule,
    inputs: Sequence[str],
    outputs: Sequence[str],
    table: Table,
    *,
    opset: int,
    sizes_change: bool = False,
) -> onnx.ModelProto:
    """Write a traced step as a model."""
    _refuse_unfit(traced, table)
    _keep_sums(traced)
    buffers = filter(step_naming.is_buffer, inputs)
    return translate_step(
        _straight_line(traced, inputs, outputs),
        table,
        opset=opset,
        sizes_change=sizes_change,
        optional_inputs=frozenset(name for name in inputs if not step_naming.is_batch(name)),
        unchanged={new: name for name in buffers if (new := step_naming.next_value(name))},
        updated=frozenset(filter(step_naming.is_next_value, outputs)),
    )


def _operations(traced: torch.fx.GraphModule) -> list[torch.fx.Node]:
    nodes = traced.graph.nodes
    return [n for n in nodes if n.op == "call_function" and n.target is not operator.getitem]


def _refuse_unfit(traced: torch.fx.GraphModule, table: Table) -> None:
    nodes = _operations(traced)
    for node in nodes:
        origin = origin_of(node)
        if node.target in random.RANDOM and origin.is_gradient:
            raise UnsupportedModelError(
                f"module {origin.scope!r} draws random numbers in its backward pass",
                why="the forward pass drew others, so the gradient would be wrong",
                remedy="Turn activation checkpointing off, or set the dropout in it to 0.",
            )
    refuse_unknown(((node.target, _described(origin_of(node))) for node in nodes), table, _OUTERMOST)


def _keep_sums(traced: torch.fx.GraphModule) -> None:
    """Add up in FP32 the gradients of a tensor of which one comes from a part that is to be in FP32."""
    for node in _operations(traced):
        origin = origin_of(node)
        if origin.is_gradient and node.target is torch.ops.aten.add.Tensor:
            in_fp32 = origin.in_fp32 or any(origin_of(term).in_fp32 for term in node.all_input_nodes)
            mark(node, origin._replace(in_fp32=in_fp32))


def _described(origin: Origin) -> str:
    return f"{origin.label or _OUTERMOST}, {origin.place}" if origin.place else origin.label


def _straight_line(traced: torch.fx.GraphModule, inputs: Sequence[str], outputs: Sequence[str]) -> TracedStep:
    sources: dict[str, tuple[Hashable, Expected]] = {}
    body: list[Constant | Operation] = []
    results: Sequence[torch.fx.Node] = ()
    names = iter(inputs)
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            sources[next(names)] = _ref(node), _expected(node.meta["val"])
        elif node.op == "get_attr":
            tensor = getattr(traced, node.target).detach().cpu()
            array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
            body.append(Constant(ref=_ref(node), array=array))
        elif node.op == "output":
            results = node.args[0]
        elif node.target is not operator.getitem:
            body.append(_operation(node))
    refs = {name: _ref(node) for name, node in zip(outputs, results, strict=True)}
    return TracedStep(inputs=sources, body=body, outputs=refs, outermost=_OUTERMOST)


def _ref(node: torch.fx.Node) -> tuple[str, int]:
    """Call a tensor by the operation that gives it, and by its place among the results."""
    if node.target is operator.getitem:
        return node.args[0].name, node.args[1]
    return node.name, 0


def _operation(node: torch.fx.Node) -> Operation:
    metas = node.meta["val"]
    if isinstance(metas, tuple | list):
        read = {user.args[1] for user in node.users}
        results = [(node.name, i) if i in read else None for i in range(len(metas))]
    else:
        metas, results = [metas], [(node.name, 0)]
    return Operation(
        kind=node.target,
        place=origin_of(node).label,
        arguments=partial(_arguments, node),
        expected=[_expected(meta) if isinstance(meta, torch.Tensor) else None for meta in metas],
        results=results,
    )


def _arguments(node: torch.fx.Node, read: Read) -> tuple[Any, Any]:
    def value(operand: torch.fx.Node) -> Any:
        return read(_ref(operand))

    return torch.fx.node.map_arg(node.args, value), torch.fx.node.map_arg(node.kwargs, value)


def _expected(meta: torch.Tensor) -> Expected:
    if meta.dtype not in DTYPES:
        raise UnsupportedModelError(f"a tensor of type {meta.dtype} cannot be part of a training step")
    return Expected(dtype=DTYPES[meta.dtype], shape=tuple(int(n) for n in meta.shape))
