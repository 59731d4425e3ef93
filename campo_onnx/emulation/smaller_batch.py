"""A step at a smaller batch: the same nodes, with fewer rows of data, where its shapes allow it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from campo_onnx.emulation.batches import part_of
from campo_onnx.emulation.initial_weights import is_weight
from campo_onnx.errors import CampoError
from campo_onnx.ir import shapes
from campo_onnx.ir.sort import outer_reads
from campo_onnx.ir.view import GraphView, TensorInfo
from campo_onnx.optimize.values.loss_scale import gradient_outputs, loss_scaling

Shape: TypeAlias = tuple[int, ...] | None

_SHAPES = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
"""The input of operators that has the sizes of their result."""

MOST_NODES = 16_384
"""Of a larger graph the first nodes: with more, a run takes too long, however few rows it has."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A graph as it is run on data."""

    model: ModelProto
    view: GraphView
    # rows, of_rows: size of the batch that is run, and of the one that was given; equal where the graph is as
    # it was.
    rows: int = 0
    of_rows: int = 0

    def cut(self, feeds: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """The first rows of a batch for the graph as it was."""
        if self.rows == self.of_rows:
            return feeds
        return {
            name: value[: self.rows] if self.view.shape(name) != value.shape else value
            for name, value in feeds.items()
        }


def batch_of(view: GraphView) -> int:
    """The size that most inputs of data have first, indices before others; 1 where there are none."""
    data = _data(view)
    indices = [name for name in data if not view.is_float32(name)]
    sizes = Counter(_first_size(name, view) for name in indices or data)
    return max(sizes, key=lambda size: (sizes[size], size), default=1)


def at_batch(step: Step, rows: int) -> Step | None:
    """Write the first nodes of a step for fewer rows of data; None where its shapes do not tell how.

    Sizes in constants that begin with a multiple of the batch are those of so many rows fewer. What comes of
    it is checked: every size of every tensor is what it was, or smaller in the proportion of the batch.
    """
    view, batch = step.view, batch_of(step.view)
    if not 0 < rows < batch:
        return None
    model = deepcopy(first_nodes(step.model.graph.node[:MOST_NODES], step.model))
    part = part_of(view, frozenset(node.name for node in model.graph.node))
    shrunk = {name for name in _data(view) if _first_size(name, view) == batch}
    for value in model.graph.input:
        sizes = view.shape(value.name)
        if sizes is None:
            return None
        written = (rows, *sizes[1:]) if value.name in shrunk else sizes
        kind = value.type.tensor_type.elem_type
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, written))
    changed = {t: _fewer(view.values[t], batch, rows) for t in _sizes(view)}
    _write(changed, model)
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        inferred = shapes.infer(model, {})
    except CampoError:
        return None
    tensors: dict[str, TensorInfo] = {}
    for name, info in view.tensors.items():
        sizes = inferred.shapes.get(name, info.shape)
        if not _is_smaller(info.shape, sizes, batch, rows):
            return None
        tensors[name] = replace(info, shape=sizes)
    smaller = replace(part, tensors=tensors, values=inferred.values)
    reshaped = (node for node in part.nodes if node.op.label == "Reshape")
    if any(tensors[n.inputs[0]].elements != tensors[n.outputs[0]].elements for n in reshaped):
        return None
    return Step(model=model, view=smaller, rows=rows, of_rows=batch)


def first_nodes(nodes: Sequence[onnx.NodeProto], model: onnx.ModelProto) -> onnx.ModelProto:
    """Leave the other nodes out, and what only they read."""
    graph = model.graph
    if len(nodes) == len(graph.node):
        return model
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    part.graph.name = graph.name
    part.graph.node.extend(nodes)
    read = {t for node in nodes for t in (*node.input, *outer_reads(node))}
    computed = {t for node in nodes for t in node.output}
    part.graph.initializer.extend(t for t in graph.initializer if t.name in read)
    part.graph.input.extend(value for value in graph.input if value.name in read)
    part.graph.output.extend(value for value in graph.output if value.name in computed)
    return part


def _data(view: GraphView) -> list[str]:
    """Inputs with several rows that are neither trained nor multiplied with as weights are."""
    trained = {view.shape(t) for t in gradient_outputs(view, loss_scaling(view))}
    several = (name for name in view.inputs if _first_size(name, view) > 1)
    return [
        name
        for name in several
        if not view.is_float32(name) or (view.shape(name) not in trained and not is_weight(name, view))
    ]


def _first_size(name: str, view: GraphView) -> int:
    sizes = view.shape(name)
    return sizes[0] if sizes else 1


def _sizes(view: GraphView) -> frozenset[str]:
    """Constants that say the sizes of a result, and nothing else."""
    sizes, others = set[str](), set[str]()
    for node in view.nodes:
        place = None if node.op.domain else _SHAPES.get(node.op.op_type)
        for position, tensor in enumerate(node.inputs):
            if view.is_constant(tensor) and tensor in view.values:
                (sizes if position == place else others).add(tensor)
    return frozenset(sizes - others)


def _fewer(sizes: NDArray[Any], batch: int, rows: int) -> NDArray[Any]:
    fewer = np.array(sizes)
    if fewer.size and fewer.flat[0] > 0 and fewer.flat[0] % batch == 0:
        fewer.flat[0] = fewer.flat[0] // batch * rows
    return fewer


def _write(constants: Mapping[str, NDArray[Any]], model: ModelProto) -> None:
    written = {name: numpy_helper.from_array(value, name) for name, value in constants.items()}
    for tensor in model.graph.initializer:
        if tensor.name in written:
            tensor.CopyFrom(written[tensor.name])
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output[0] in written:
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("value", written[node.output[0]]))


def _is_smaller(before: Shape, after: Shape, batch: int, rows: int) -> bool:
    """Whether sizes are what they were, or smaller in the proportion of the batch."""
    if before is None or after is None:
        return before == after
    pairs = zip(before, after, strict=False)
    return len(before) == len(after) and all(a == b or b * batch == a * rows for a, b in pairs)
