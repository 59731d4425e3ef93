"""A graph of any sizes as a file: dimensions have names, and what depends on them is computed from shapes."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from campo_onnx.ir.importer import import_model
from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.size_ranges import SizeRange, write_ranges
from campo_onnx.ir.sizes.any_size import AnySize
from campo_onnx.ir.sizes.formulas import ArrayFormula, Formula
from campo_onnx.ops.fold import evaluated

_SCOPE = "sizes/"
"""Begins the names of nodes that compute what depends on sizes, and of nothing else."""


def with_names(graph: AnySize, ranges: Mapping[str, SizeRange]) -> onnx.ModelProto:
    """Write a graph of any sizes with named dimensions.

    Numbers are computed in FP64 and rounded to FP32 once, so that they are those of an export at these sizes.

    `graph`: its sizes are those of `ranges`, in their order.
    `ranges`: at which sizes it holds, by dimension. Each of them is the size of an axis of some input.

    The mean over a batch multiplies by a constant 1/8 at size 8; in the file it is the inverse of an input's
    first size: Shape, Cast, Pow, Cast.
    """
    model = deepcopy(graph.model)
    names = tuple(ranges)
    axes: dict[str, tuple[str, int]] = {}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        for axis, formula in enumerate(graph.shapes[value.name]):
            if formula.is_constant:
                continue
            dim = value.type.tensor_type.shape.dim[axis]
            dim.Clear()
            name = next((n for i, n in enumerate(names) if _is_size(formula, i, len(names))), None)
            if name is not None:
                dim.dim_param = name
                axes.setdefault(name, (value.name, axis))
    written = _Arithmetic(sizes=[axes[name] for name in names])
    for name, constant in graph.constants.items():
        written.array(constant, name)
    constants = [tensor for tensor in model.graph.initializer if tensor.name not in graph.constants]
    replace_items(model.graph.initializer, [*constants, *written.constants])
    replace_items(model.graph.node, [*written.nodes, *model.graph.node])
    write_ranges(model, ranges)
    return model


def at(model: onnx.ModelProto, sizes: Mapping[str, int]) -> onnx.ModelProto:
    """Bind the dimensions of a file to sizes, and compute what depends on them.

    `model`: as :func:`with_names` writes it, perhaps planned since; not changed.
    """
    bound = deepcopy(model)
    graph = bound.graph
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    written = [node for node in graph.node if node.name.startswith(_SCOPE)]
    others = [node for node in graph.node if not node.name.startswith(_SCOPE)]
    read = {name for node in written for name in node.input}
    results_written = {name for node in written for name in node.output}
    results = sorted(results_written & {name for node in others for name in node.input})
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.input}
    feeds = {name: np.broadcast_to(np.float32(0), shapes[name]) for name in shapes.keys() & read}
    part = GraphProto(node=written, input=[onnx.ValueInfoProto(name=name) for name in feeds])
    part.initializer.extend(tensor for tensor in graph.initializer if tensor.name in read)
    part.output.extend(onnx.ValueInfoProto(name=name) for name in results)
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    arrays = evaluated(part, feeds, opset) if results else []
    replace_items(graph.node, others)
    still = {name for node in others for name in node.input}
    constants = [tensor for tensor in graph.initializer if tensor.name in still]
    computed = [numpy_helper.from_array(np.asarray(a), n) for n, a in zip(results, arrays, strict=True)]
    replace_items(graph.initializer, [*constants, *computed])
    del graph.value_info[:]
    write_ranges(bound, {})
    types = import_model(bound, any_type=True).view.tensors
    for value in graph.output:
        shape = types[value.name].shape
        value.CopyFrom(helper.make_tensor_value_info(value.name, types[value.name].dtype, shape))
    return bound


def _is_size(formula: Formula, place: int, count: int) -> bool:
    """Whether a formula is one of the sizes itself."""
    unit = tuple(int(i == place) for i in range(count))
    return (formula.offset, formula.factor, formula.powers, formula.scale) == (
        0,
        1,
        unit,
        1,
    ) and not formula.more


@dataclass(kw_only=True)
class _Arithmetic:
    """Nodes that compute arrays from sizes."""

    sizes: Sequence[tuple[str, int]]  # an input and an axis for each size
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    _made: dict[Any, str] = field(default_factory=dict)

    def array(self, formula: ArrayFormula, name: str) -> None:
        """Compute an array of some name."""
        shape = self._vector([self._whole(n) for n in formula.shape])
        dtype = helper.np_dtype_to_tensor_dtype(formula.dtype)
        if formula.elements is not None:
            flat = self._vector([self._element(e, formula) for e in formula.elements])
        else:
            flat = self._ramp(formula)
            flat = self._op("Expand", flat, shape)
        self._op("Cast", self._op("Reshape", flat, shape), to=dtype, output=name)

    def _ramp(self, formula: ArrayFormula) -> str:
        """Compute a large array, up to axes along which nothing is added."""
        total = self._element(formula.first, formula)
        for axis, (step, length) in enumerate(zip(formula.steps, formula.shape, strict=True)):
            if step.is_constant and not step.offset:
                continue
            end = self._op("Squeeze", self._whole(length))
            places = self._op("Range", self._constant(0), end, self._constant(1))
            if formula.dtype.kind == "f":
                places = self._op("Cast", places, to=TensorProto.DOUBLE)
            added = self._op("Mul", places, self._element(step, formula))
            along = [-1 if i == axis else 1 for i in range(len(formula.shape))]
            total = self._op("Add", total, self._op("Reshape", added, self._constant(along)))
        return total

    def _element(self, formula: Formula, array: ArrayFormula) -> str:
        return self._real(formula) if array.dtype.kind == "f" else self._whole(formula)

    def _whole(self, formula: Formula) -> str:
        """Compute an integer, as a vector of one element."""
        if formula.is_constant:
            return self._constant([int(formula.offset)])
        base = self._sum(formula, int)
        if formula.factor != 1:
            base = self._op("Mul", base, self._constant([int(formula.factor)]))
        return self._op("Add", base, self._constant([int(formula.offset)])) if formula.offset else base

    def _real(self, formula: Formula) -> str:
        if formula.is_constant:
            return self._constant([float(formula.offset)])
        base = self._sum(formula, float)
        if formula.shift:
            base = self._op("Add", base, self._constant([float(formula.shift)]))
        if formula.exponent != 1:
            base = self._op("Pow", base, self._constant([float(formula.exponent)]))
        scaled = self._op("Mul", base, self._constant([float(formula.factor)]))
        return self._op("Add", scaled, self._constant([float(formula.offset)])) if formula.offset else scaled

    def _sum(self, formula: Formula, kind: type[int] | type[float]) -> str:
        """Compute the sum of the terms that depend on sizes."""
        terms = []
        for scale, powers in ((formula.scale, formula.powers), *formula.more):
            term = self._product(powers)
            if kind is float:
                term = self._op("Cast", term, to=TensorProto.DOUBLE)
            terms.append(term if scale == 1 else self._op("Mul", term, self._constant([kind(scale)])))
        return reduce(partial(self._op, "Add"), terms)

    def _product(self, powers: Sequence[int]) -> str:
        """Compute the product of powers of sizes."""
        factors = [
            self._op("Shape", tensor, start=axis, end=axis + 1)
            for (tensor, axis), power in zip(self.sizes, powers, strict=True)
            for _ in range(power)
        ]
        return reduce(partial(self._op, "Mul"), factors)

    def _vector(self, numbers: Sequence[str]) -> str:
        if not numbers:
            return self._constant(np.zeros(0, np.int64))
        return numbers[0] if len(numbers) == 1 else self._op("Concat", *numbers, axis=0)

    def _constant(self, numbers: Any) -> str:
        array: NDArray[Any] = np.asarray(numbers, None if np.size(numbers) else np.int64)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._made:
            self._made[key] = f"{_SCOPE}constant_{len(self._made)}"
            self.constants.append(numpy_helper.from_array(array, self._made[key]))
        return self._made[key]

    def _op(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        key = (op_type, inputs, tuple(attributes.items()))
        if output or key not in self._made:
            name = f"{_SCOPE}{op_type}_{len(self.nodes)}"
            result = output or name
            self.nodes.append(helper.make_node(op_type, inputs, [result], name, **attributes))
            self._made.setdefault(key, result)
        return output or self._made[key]
