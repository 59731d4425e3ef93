"""A training step that a peer converted: whether it is still valid, and which nodes are in FP16."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import onnx
from onnx import ModelProto, TensorProto

from benchmarks.evaluation.strategies import options_for
from campo_onnx import oplists, optimize_model, target
from campo_onnx.checking.changes import Changes
from campo_onnx.checking.context import predicted_us
from campo_onnx.errors import CampoError
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.shapes import infer
from campo_onnx.ir.view import FLOAT
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.safety import loss
from campo_onnx.optimize.updates import weight_update
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.registry import load, machine

_FLOATS = frozenset({FLOAT, TensorProto.FLOAT16})
_CAST = OpKey("", "Cast")
_INVALID = onnx.checker.ValidationError, onnx.shape_inference.InferenceError

T = TypeVar("T")


def examine(graph: Path, converted: Path, devices: Sequence[str]) -> dict[str, Any]:
    """Hold a converted graph against the FP32 graph it was made from."""
    original = import_model(graph)
    model = onnx.load(converted)
    dtypes = _dtypes(model)
    low = low_names(model, dtypes) & frozenset(original.view.node)
    update, of_loss = weight_update(original.view), loss(original.view, oplists("campo"))
    mixed, unreadable = _told(lambda: import_model(converted), CampoError)
    steps_us = {} if mixed is None else {name: _predict(graph, mixed, low, name) for name in devices}
    had = _casts(original.model, {name: info.dtype for name, info in original.view.tensors.items()})
    anywhere = LoadSettings(must_stay=False)
    return {
        "invalid": _told(lambda: onnx.checker.check_model(converted, full_check=True), *_INVALID)[1],
        "refused": _told(lambda: load(model, machine("cpu"), settings=anywhere), CampoError)[1],
        "unreadable": unreadable,
        "interface_kept": _interface(original.model) == _interface(model),
        "nodes": len(original.view.nodes),
        "low_nodes": len(low),
        "update_nodes": len(update),
        "low_update_nodes": len(update & low),
        "loss_nodes": len(of_loss),
        "low_loss_nodes": len(of_loss & low),
        "casts": _casts(model, dtypes) - had,
        "fp32_us": {name: fp32_us for name, (fp32_us, _) in steps_us.items()},
        "predicted_us": {name: mixed_us for name, (_, mixed_us) in steps_us.items()},
    }


def low_names(model: ModelProto, dtypes: dict[str, int]) -> frozenset[str]:
    """Names of the nodes other than Casts that read or write an FP16 tensor."""
    return frozenset(
        node.name
        for node in model.graph.node
        if node.op_type != "Cast"
        and any(dtypes.get(tensor) == TensorProto.FLOAT16 for tensor in (*node.input, *node.output))
    )


def _dtypes(model: ModelProto) -> dict[str, int]:
    """Type of every tensor; of a graph whose types contradict each other, as far as they can be told."""
    try:
        return dict(infer(model, {}).dtypes)
    except onnx.checker.ValidationError:
        graph = onnx.shape_inference.infer_shapes(model).graph
    dtypes = {tensor.name: tensor.data_type for tensor in graph.initializer}
    values = (*graph.input, *graph.output, *graph.value_info)
    return dtypes | {value.name: value.type.tensor_type.elem_type for value in values}


def _casts(model: ModelProto, dtypes: dict[str, int]) -> int:
    return sum(
        node.op_type == "Cast" and {dtypes.get(node.input[0]), dtypes.get(node.output[0])} <= _FLOATS
        for node in model.graph.node
    )


def _told(call: Callable[[], T], *errors: type[Exception]) -> tuple[T | None, str]:
    """The result of a call, or the first line of the error that it ends with."""
    try:
        return call(), ""
    except errors as error:
        why = error.why or error.what if isinstance(error, CampoError) else str(error)
        return None, next(iter(why.strip().splitlines()), "")


def _predict(graph: Path, mixed: Imported, low: frozenset[str], name: str) -> tuple[float, float]:
    """FP32 step and that of the mixed graph: every node in the precision it has, every Cast that is there.

    No more is asked of the mixed graph than its nodes' names: what it computes is checked elsewhere.
    """
    options = options_for(target(name))
    problem = optimize_model(graph, replace(options, strategy="fp32")).problem
    before, after = problem.view.node, mixed.view.node
    changes = Changes(
        low=Precision.FP16,
        low_nodes=low,
        removed=frozenset(before) - frozenset(after),
        casts=tuple(node for node in mixed.view.nodes if node.op == _CAST and node.name not in before),
        paddings=(),
    )
    return problem.costs.fp32_us, predicted_us(problem, changes, mixed.view, options.target)


def _interface(model: ModelProto) -> list[list[tuple[str, bytes]]]:
    return [
        [(value.name, value.type.SerializeToString(deterministic=True)) for value in values]
        for values in (model.graph.input, model.graph.output)
    ]
