"""A graph with every low type turned back into FP32, and whether it computes what the given one does."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from campo_onnx.ir.importer import Imported
from campo_onnx.planning.pipeline import Optimized
from tests.random_graphs.builder import Array, RandomGraph

Feeds = Mapping[str, Array]
Runner = Callable[[ModelProto, Feeds], Mapping[str, Array]]

LOW_TYPES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


class OracleError(AssertionError):
    """An oracle does not hold; `kind` says which."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind, self.detail = kind, detail


def gist(text: str) -> str:
    """A message without names and numbers."""
    return re.sub(r"'[^']*'|[\d.]+|\(.*?\)", "_", " ".join(text.split()))[:110]


def same_in_fp32(graph: RandomGraph, result: Optimized, run: Runner) -> None:
    """With every low type turned back into FP32, both graphs compute the same to the bit."""
    original, written = raised(graph.model), raised(result.model, result.imported)
    feeds = {name: wide(value) for name, value in graph.feeds.items()}
    try:
        expected = run(original, feeds)
    except Exception:
        return  # what the graph computes in low precision has no FP32 kernel
    try:
        actual = run(written, feeds)
    except Exception as error:
        raise OracleError("does not run in FP32", gist(str(error))) from error
    for name, value in expected.items():
        if not isinstance(value, np.ndarray) or np.array_equal(
            value, actual[name], equal_nan=value.dtype.kind == "f"
        ):
            continue
        # A padded product adds up zeros as well, in another order.
        if not result.plan.pads or not np.allclose(value, actual[name], rtol=1e-4, atol=1e-4, equal_nan=True):
            raise OracleError("other values in FP32", name)


def wide(value: Any) -> Any:
    if isinstance(value, list):
        return [wide(item) for item in value]
    is_low = isinstance(value, np.ndarray) and value.dtype.name in ("float16", "bfloat16")
    return value.astype(np.float32) if is_low else value


def raised(model: ModelProto, imported: Imported | None = None) -> ModelProto:
    """Turn every FP16 and BF16 into FP32.

    Parameters
    ----------
    imported
        For a graph of ours the one it came from: constants get their FP32 values back.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    _raise_graph(copy.graph)
    if imported is not None:
        _restore_fills(copy.graph, imported.model.graph)
    for function in copy.functions:
        _raise_nodes(function.node)
    if imported is not None:
        stored = {tensor.name for tensor in imported.model.graph.initializer}
        for tensor in copy.graph.initializer:
            source = re.sub(r"_(fp16|bf16)(_\d+)?(_padded(_\d+)?)?$", "", tensor.name)
            if tensor.name not in stored and source in imported.constants:
                exact = numpy_helper.to_array(imported.constants[source])
                ends = [(0, long - size) for long, size in zip(tensor.dims, exact.shape, strict=True)]
                longer = np.pad(exact, ends) if ends else exact
                tensor.CopyFrom(numpy_helper.from_array(longer, tensor.name))
    return copy


def _restore_fills(graph: GraphProto, original: GraphProto) -> None:
    fills = {node.name: node for node in original.node if node.op_type == "ConstantOfShape"}
    for node in graph.node:
        if node.name in fills:
            del node.attribute[:]
            node.attribute.extend(fills[node.name].attribute)


def _raise_graph(graph: GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in LOW_TYPES:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in graph.initializer:
        _raise_tensor(tensor)
    _raise_nodes(graph.node)


def _raise_nodes(nodes: Iterator[onnx.NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "output_dtype", "stash_type") and attribute.i in LOW_TYPES:
                attribute.i = TensorProto.FLOAT
            _raise_tensor(attribute.t)
            for body in (attribute.g, *attribute.graphs):
                _raise_graph(body)


def _raise_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in LOW_TYPES:
        exact = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(exact, tensor.name))


def raised_interface(model: ModelProto) -> ModelProto:
    """Let an emulated graph take and give FP32 where it takes and gives FP16."""
    return model if not any(_is_low(v) for v in (*model.graph.input, *model.graph.output)) else raised(model)


def _is_low(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in LOW_TYPES
