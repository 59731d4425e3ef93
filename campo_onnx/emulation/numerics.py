"""The numbers that a mixed graph computes, on a machine without FP16 arithmetic.

ONNX Runtime's CPU provider runs FP16 nodes in FP32 and drops the Casts around them, so running a
mixed graph there says nothing about its numerics. :func:`emulate` writes the rounding down as Casts
that the provider keeps.
"""

import math
import zlib
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.constants import write_out_sparse
from campo_onnx.ir.dims import dims_within
from campo_onnx.ir.domains import shorten_domains
from campo_onnx.ir.inline import inline_functions
from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.shapes import infer
from campo_onnx.ir.size_ranges import with_examples
from campo_onnx.ir.sort import (
    bodies,
    fresh,
    graphs_of,
    name_nodes,
    outer_reads,
    sort_nodes,
    tensor_names,
    with_bodies,
)
from campo_onnx.lowering.edit import Edit
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.raise_opset import lower_opset
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import is_low_dtype
from campo_onnx.ops.registry import RANDOM
from campo_onnx.ops.schema import schema_of
from campo_onnx.runtime.chunked_run import dims_of_feeds, run_in_pieces
from campo_onnx.runtime.machine import CPU
from campo_onnx.runtime.registry import machine

# They convert or make values and compute none: ONNX Runtime runs them in the low precision as they are.
_NATIVE = frozenset({"Cast", "Constant", "ConstantOfShape"})

# ONNX Runtime takes a Cast of this name for one of its own that loses nothing, and drops it.
_DROPPED_PREFIX = "InsertedPrecisionFreeCast_"


def emulate(model: ModelProto, dims: Mapping[str, int] | None = None) -> ModelProto:
    """Turn a mixed graph into one that computes in FP32 and rounds where the mixed one does.

    A node with low inputs or outputs becomes the FP32 node on the same values, and each of its low
    outputs is rounded by a Cast, to nearest with ties to even, overflowing to infinity and with
    subnormals. This is FP32 accumulation and low storage, what CUDA kernels do unless told
    otherwise; sums, differences, products, quotients and square roots are then those of IEEE
    arithmetic in the low precision, to the bit.

    Every low tensor keeps its name and type, as the result of its Cast; the FP32 copy that nodes
    read is called ``<name>_widened``. So the interface stays as it is, low inputs and outputs
    included.

    It is to be run with graph optimizations off: fusions look through Casts and delete them.

    `model`: a graph with FP16 or BF16 tensors; not changed. One without is returned as a copy.

    Raises UnsupportedModelError if a body of If, Loop or Scan holds or reads a low tensor, or a node reads
    the bits of one.
    """
    emulated = deepcopy(model)
    shorten_domains(emulated)
    emulated = inline_functions(emulated)
    write_out_sparse(emulated.graph)
    graph = emulated.graph
    name_nodes(graph)
    sort_nodes(graph)
    sizes = dims_within(graph, with_examples(emulated, dims or {}))
    work = _Emulation(infer(emulated, sizes).dtypes, graph)
    for node in graph.node:
        work.add(node)
    replace_items(graph.node, work.nodes)
    lower_opset(emulated, Place.on_a_cpu())
    return emulated


class _Emulation:
    """One run of :func:`emulate`: the nodes written so far, and the FP32 copy of each low tensor."""

    def __init__(self, dtypes: Mapping[str, int], graph: GraphProto) -> None:
        self.nodes: list[NodeProto] = []
        self._dtypes = dtypes
        self._widened: dict[str, str] = {}
        self._taken_tensors = tensor_names(graph) | dtypes.keys()
        self._taken_nodes = {node.name for node in graph.node}

    def add(self, source: NodeProto) -> None:
        """Write one node, in FP32 if it was low."""
        node = deepcopy(source)
        if node.name.startswith(_DROPPED_PREFIX):
            node.name = fresh(f"kept_{node.name}", self._taken_nodes)
        if node.op_type in _NATIVE and not node.domain:
            self.nodes.append(node)
            self._remember_widening(node)
            return
        _refuse_bodies(node, self._dtypes)
        reads_low = any(self._is_low(tensor) for tensor in node.input)
        if reads_low and node.op_type == "BitCast":
            raise UnsupportedModelError(
                f"node {node.name!r} (BitCast) reads the bits of a low tensor",
                why="its FP32 copy has other bits",
                remedy="Keep it out of low precision.",
            )
        node.input[:] = [self._widen(t) if self._is_low(t) else t for t in source.input]
        node.output[:] = [
            fresh(f"{t}_exact", self._taken_tensors) if self._is_low(t) else t for t in source.output
        ]
        if node.output != source.output:
            for attribute in node.attribute:
                if attribute.name == "dtype" and is_low_dtype(attribute.i):
                    attribute.i = TensorProto.FLOAT
        self.nodes.append(node)
        for exact, rounded in zip(node.output, source.output, strict=True):
            if exact != rounded:
                self._cast(exact, rounded, self._dtypes[rounded], f"round_{rounded}")

    def _is_low(self, tensor: str) -> bool:
        return is_low_dtype(self._dtypes.get(tensor))

    def _widen(self, tensor: str) -> str:
        if tensor not in self._widened:
            self._widened[tensor] = fresh(f"{tensor}_widened", self._taken_tensors)
            self._cast(tensor, self._widened[tensor], TensorProto.FLOAT, f"widen_{tensor}")
        return self._widened[tensor]

    def _remember_widening(self, node: NodeProto) -> None:
        """Let later consumers of a low tensor share a Cast to FP32 that the graph has already."""
        is_widening = node.op_type == "Cast" and self._is_low(node.input[0])
        if is_widening and self._dtypes.get(node.output[0]) == TensorProto.FLOAT:
            self._widened.setdefault(node.input[0], node.output[0])

    def _cast(self, source: str, target: str, to: int, name: str) -> None:
        node = onnx.helper.make_node("Cast", [source], [target], name=fresh(name, self._taken_nodes), to=to)
        self.nodes.append(node)


def without_underflow(emulated: ModelProto) -> ModelProto:
    """Let an emulated FP16 graph round as FP16 does, but keep values that are too small for it.

    What a graph without a loss scale computes this way is what it would compute with one: its
    backward pass is linear, and a power of two changes no significand. Overflow stays overflow.
    """
    copy = deepcopy(emulated)
    graph = copy.graph
    outputs = {value.name for value in graph.output}
    taken = tensor_names(graph) | {node.name for node in graph.node}
    rounded = {
        node.output[0]
        for node in graph.node
        if node.op_type == "Cast" and _casts_to(node, TensorProto.FLOAT16) and node.output[0] not in outputs
    }
    low_inputs = {v.name for v in graph.input if v.type.tensor_type.elem_type != TensorProto.FLOAT}
    nodes: list[NodeProto] = []
    added: dict[tuple[Any, ...], str] = {}
    for node in graph.node:
        if node.output and node.output[0] in rounded and node.input[0] not in low_inputs:
            edit = Edit(node.name, taken, graph.initializer, added)
            _round(edit, node.input[0], node.output[0])
            nodes += edit.nodes
        else:
            nodes.append(node)
    replace_items(graph.node, nodes)
    replace_items(graph.value_info, [info for info in graph.value_info if info.name not in rounded])
    return copy


_SPLITTER = 2.0**13 + 1
_FP16_OVERFLOW = 65520.0  # from here on FP16 rounds to infinity


def _casts_to(node: NodeProto, dtype: int) -> bool:
    return any(attribute.name == "to" and attribute.i == dtype for attribute in node.attribute)


def _round(edit: Edit, source: str, target: str) -> None:
    """Round to 11 significant bits by Dekker's splitting, which is exact in FP32."""
    splitter, limit, infinity = (
        edit.constant(np.float32(value)) for value in (_SPLITTER, _FP16_OVERFLOW, np.inf)
    )
    wide = edit.op("Cast", source, to=TensorProto.FLOAT)
    scaled = edit.op("Mul", wide, splitter)
    high = edit.op("Sub", scaled, edit.op("Sub", scaled, wide))
    overflows = edit.op("GreaterOrEqual", edit.op("Abs", wide), limit)
    edit.op("Where", overflows, edit.op("Mul", wide, infinity), high, output=target)


def _refuse_bodies(node: NodeProto, dtypes: Mapping[str, int]) -> None:
    graphs = [graph for body in bodies(node) for graph in graphs_of(body)]
    if not graphs:
        return
    outside = (*node.input, *node.output, *outer_reads(node))
    if any(is_low_dtype(dtypes.get(t)) for t in outside) or any(map(_states_low, graphs)):
        raise UnsupportedModelError(
            f"node {node.name!r} ({node.op_type}) computes in low precision inside a body",
            why="bodies of If, Loop and Scan are not emulated",
            remedy="Keep bodies and what they read in FP32, as campo-onnx does.",
        )


def _states_low(body: GraphProto) -> bool:
    """Whether a low tensor arises in a body: in a constant, or in a node that states its type."""
    attributes = [attribute for node in body.node for attribute in node.attribute]
    stated = [attribute.i for attribute in attributes if attribute.name in ("to", "dtype")]
    constants = [tensor.data_type for tensor in body.initializer]
    return any(map(is_low_dtype, (*stated, *constants, *(attribute.t.data_type for attribute in attributes))))


def drift(
    fp32_model: ModelProto, mixed_model: ModelProto, feeds: Mapping[str, NDArray[Any]], *, threads: int = 0
) -> dict[str, float]:
    """Compare what a mixed graph computes with what the FP32 graph computes, on a CPU.

    The mixed graph is emulated. Random nodes without a seed get the same one in both graphs, made
    from their name, so that both draw the same dropout masks.

    Each output has the relative L2 error ``||mixed - fp32|| / ||fp32||``: 0 where both are the same,
    infinite where the mixed output is not finite although the FP32 one is.

    `fp32_model` and `mixed_model`: the graph as exported, and in mixed precision, with static shapes and the
    same outputs.
    """
    here = machine(CPU, threads)
    expected = dict(run_in_pieces(seeded(fp32_model), feeds, here))
    actual = dict(run_in_pieces(seeded(emulate(mixed_model, dims_of_feeds(mixed_model, feeds))), feeds, here))
    return {name: relative_l2(actual[name], expected[name]) for name in expected}


def relative_l2(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """Relative L2 error of an array, in FP64.

    >>> relative_l2(np.array([3.0, 4.4]), np.array([3.0, 4.0]))
    0.08
    """
    error = difference(actual, expected)
    if error == 0.0:
        return 0.0
    exact = expected.astype(np.float64)
    size = float(np.linalg.norm(exact[np.isfinite(exact)]))
    return round(error / size, 15) if size else float("inf")


def difference(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """L2 norm of the difference, in FP64; values that are the same infinity, or both NaN, do not differ."""
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        error = float(np.linalg.norm(a - e))
    if math.isfinite(error):  # the usual case, in a third of the time
        return error
    differs = ~((a == e) | (np.isnan(a) & np.isnan(e)))
    with np.errstate(invalid="ignore", over="ignore"):
        error = float(np.linalg.norm((a - e)[differs]))
    return error if np.isfinite(error) else float("inf")


def seeded(model: ModelProto) -> ModelProto:
    """Copy a graph so that it runs repeatably on a CPU: each random node has a seed, made from its name."""
    copy = deepcopy(model)
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    for node in with_bodies(copy.graph.node):
        op = OpKey.of(node)
        schema = schema_of(op, opsets.get(op.domain, 1))
        takes_seed = schema is None or "seed" in schema.attributes  # Dropout does since opset 12
        if op in RANDOM and takes_seed and all(attribute.name != "seed" for attribute in node.attribute):
            seed = zlib.crc32(node.name.encode()) >> 8  # a float holds integers up to 2^24
            kind = int if "Dropout" in node.op_type else float
            node.attribute.append(onnx.helper.make_attribute("seed", kind(seed)))
    lower_opset(copy, Place.on_a_cpu())
    return copy
