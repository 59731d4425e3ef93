"""Dynamic fixed point (Das et al., ICLR 2018) as a way to emulate a mixed graph.

No format that ONNX knows: a tensor is 16-bit integers and one exponent that they share, and products
accumulate in 32-bit integers. :func:`emulate_dfp16` writes that down in standard operators, bit by bit: which
nodes are low is what a plan for FP16 decided, what low means is exchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from campo_onnx.emulation.dfp16_products import PRODUCTS, Blocks, blocks_of
from campo_onnx.emulation.numerics import emulate
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.shapes import infer
from campo_onnx.ir.sort import fresh
from campo_onnx.ops.precision import is_low_dtype

BITS = 16
CHAIN = 256
"""Products that are summed in an integer before the sum goes on in FP32; the paper has "more than 200". Of up
to 1,024, products of 8-bit halves stay below 2^24, where FP32 is exact. A convolution's are whole kernels.
"""

SHIFT = 1
"""Bits that both factors of a product lose, so that sums of so many fit 32 bits (section 4.3)."""

_MOVES = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_INT32 = 2**31


class Rounding(Enum):
    """Conversion of a value to an integer."""

    NEAREST = "nearest"
    """To the nearest integer, ties to even."""
    STOCHASTIC = "stochastic"
    """Up with the probability of the fraction, so that the mean is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fixed:
    """A tensor in dynamic fixed point, by names of what makes it up."""

    integers: str  # held as FP32
    scale: str  # a power of two
    spoiled: str  # NaN where the tensor held infinity or NaN, else 0


def emulate_dfp16(
    model: ModelProto,
    dims: Mapping[str, int] | None = None,
    *,
    rounding: Rounding = Rounding.NEAREST,
) -> ModelProto:
    """Turn a mixed graph into one that computes as DFP-16 hardware would where the mixed one is low.

    A low tensor is quantized where it is made, with the exponent of its largest magnitude (Eqs. 1 to 3).
    Products of two low tensors multiply integers, sum :data:`CHAIN` of them in 32 bits, which wrap around,
    and add such sums up in FP32 (section 4.3). What a product makes only for FP32, as a weight's gradient, is
    not quantized (section 4.1). All other low nodes compute in FP32 on the values of quantized tensors.

    The result is in FP32, to be run with graph optimizations off.

    `model`: a graph with FP16 or BF16 tensors; not changed. Inputs and outputs are FP32.

    Raises UnsupportedModelError if an input or output is low, a body of If, Loop or Scan is, or a product
    cannot be cut into sums.
    """
    emulated = emulate(model, dims)
    for value in (*emulated.graph.input, *emulated.graph.output):
        if is_low_dtype(value.type.tensor_type.elem_type):
            raise UnsupportedModelError(
                f"{value.name!r} enters or leaves the graph in low precision",
                why="nothing outside the graph uses dynamic fixed point",
                remedy="Keep the interface in FP32, as campo-onnx does.",
            )
    _Fixing(emulated, dims or {}, rounding).rewrite()
    return emulated


class _Fixing:
    """One run of :func:`emulate_dfp16`."""

    def __init__(self, emulated: ModelProto, dims: Mapping[str, int], rounding: Rounding) -> None:
        shapes = infer(emulated, dims)
        self._graph = emulated.graph
        self._dtypes, self._shapes = shapes.dtypes, shapes.shapes
        self._rounding = rounding
        self._taken = {*shapes.dtypes, *(node.name for node in self._graph.node)}
        self._nodes: list[NodeProto] = []
        self._fixed: dict[str, _Fixed] = {}
        self._constants: dict[tuple[str, bytes], str] = {}
        self._consumers: dict[str, list[NodeProto]] = {}
        for node in self._graph.node:
            for tensor in node.input:
                self._consumers.setdefault(tensor, []).append(node)
        self._products = {t for node in self._graph.node if node.op_type in PRODUCTS for t in node.output}
        self._exact: set[str] = set()

    def rewrite(self) -> None:
        """Rewrite the graph in place."""
        for tensor in [t for t in self._graph.initializer if is_low_dtype(t.data_type)]:
            self._quantize_constant(tensor)
        for node in self._graph.node:
            self._add(node)
        replace_items(self._graph.node, self._nodes)
        infos = [info for info in self._graph.value_info if not self._is_low(info.name)]
        replace_items(self._graph.value_info, infos)

    def _add(self, node: NodeProto) -> None:
        makes_low = any(map(self._is_low, node.output))
        if node.op_type == "Cast" and not node.domain and makes_low:
            self._make_low(node)
        elif makes_low:  # Constant, ConstantOfShape: all other nodes of an emulated graph compute in FP32
            self._make_constant(node)
        elif node.op_type == "Cast" and node.input[0] in self._fixed:
            if self._dtypes.get(node.output[0]) == TensorProto.FLOAT:
                self._fixed[node.output[0]] = self._fixed[node.input[0]]
            self._nodes.append(node)
        elif node.op_type in PRODUCTS and all(t in self._fixed for t in node.input[:2]):
            self._multiply(node)
        else:
            self._nodes.append(node)

    def _make_low(self, cast: NodeProto) -> None:
        source, target = cast.input[0], cast.output[0]
        if source in self._products and target not in self._exact:
            self._exact |= self._only_for_fp32(target) or set()
        if target in self._exact:
            self._emit("Identity", source, target=target)
            return
        if self._dtypes.get(source) != TensorProto.FLOAT:
            source = self._emit("Cast", source, to=int(TensorProto.FLOAT))
        self._quantize(source, target)

    def _only_for_fp32(self, low: str) -> set[str] | None:
        """Find a low tensor, and its moved copies, of which FP32 is all that is made; None if more is."""
        tensors = {low}
        for cast in self._consumers.get(low, ()):
            if cast.op_type != "Cast" or self._is_low(cast.output[0]):
                return None
            for reader in self._consumers.get(cast.output[0], ()):
                for rounded in self._rounded(reader):
                    moved = self._only_for_fp32(rounded) if reader.op_type in _MOVES else None
                    if moved is None:
                        return None
                    tensors |= moved
        return tensors

    def _rounded(self, node: NodeProto) -> list[str]:
        """The low tensors that a node makes, by way of the Casts that round its outputs."""
        casts = [c for tensor in node.output for c in self._consumers.get(tensor, ()) if c.op_type == "Cast"]
        return [cast.output[0] for cast in casts if self._is_low(cast.output[0])]

    def _is_low(self, tensor: str) -> bool:
        return is_low_dtype(self._dtypes.get(tensor))

    def _quantize(self, source: str, target: str) -> None:
        """Quantize an FP32 tensor (Eqs. 1 to 3); `target` becomes its value in FP32."""
        largest = self._emit("ReduceMax", self._emit("Abs", source), keepdims=0)
        power = self._power_of_two(largest)
        scale = self._emit("Mul", power, self._constant(np.float32(2.0 ** (2 - BITS))))
        divided = self._emit("Div", source, scale)
        if self._rounding is Rounding.NEAREST:
            whole = self._emit("Round", divided)
        else:
            chance = self._emit("RandomUniformLike", divided, low=0.0, high=1.0)
            whole = self._emit("Floor", self._emit("Add", divided, chance))
        limits = (self._constant(np.float32(-(2.0**15))), self._constant(np.float32(2.0**15 - 1)))
        integers = self._emit("Clip", whole, *limits)
        value = self._emit("Mul", integers, scale)
        # Infinity and NaN have no exponent: they spoil the whole tensor, so that nobody overlooks them.
        nothing = self._emit("Mul", source, self._constant(np.float32(0.0)))
        spoiled = self._emit("ReduceSum", nothing, keepdims=0)
        self._emit("Add", value, spoiled, target=target)
        self._fixed[target] = _Fixed(integers=integers, scale=scale, spoiled=spoiled)

    def _power_of_two(self, largest: str) -> str:
        """The power of two below a magnitude, exactly; 1 for zero."""
        powers = self._constant(np.ldexp(np.float32(1.0), np.arange(-149, 128)).astype(np.float32))
        below = self._emit("LessOrEqual", powers, largest)
        result = self._emit("Where", below, powers, self._constant(np.float32(0.0)))
        power = self._emit("ReduceMax", result, keepdims=0)
        is_zero = self._emit("Equal", power, self._constant(np.float32(0.0)))
        return self._emit("Where", is_zero, self._constant(np.float32(1.0)), power)

    def _quantize_constant(self, tensor: TensorProto) -> None:
        name = tensor.name
        value = numpy_helper.to_array(tensor).astype(np.float32)
        exact = fresh(f"{name}_fp32", self._taken)
        tensor.CopyFrom(numpy_helper.from_array(value, exact))
        self._quantize(exact, name) if value.size else self._emit("Identity", exact, target=name)

    def _make_constant(self, node: NodeProto) -> None:
        low = self._emit(node.op_type, *node.input, like=node)
        self._quantize(self._emit("Cast", low, to=int(TensorProto.FLOAT)), node.output[0])

    def _multiply(self, node: NodeProto) -> None:
        first, second = (self._fixed[tensor] for tensor in node.input[:2])
        blocks = blocks_of(node, [self._shapes.get(tensor) for tensor in node.input[:2]], CHAIN)
        halves = [self._halves(factor.integers) for factor in (first, second)]
        total = ""
        for block in range(blocks.count):
            summed = self._integer_sum(blocks, block, halves)
            scaled = self._emit("Mul", self._emit("Mul", summed, first.scale), second.scale)
            total = self._emit("Add", total, scaled) if total else scaled
        total = self._emit("Add", total, self._emit("Add", first.spoiled, second.spoiled))
        factor = np.float32(blocks.alpha * 4.0**SHIFT)
        if factor != 1:
            total = self._emit("Mul", total, self._constant(factor))
        if blocks.added:
            added = blocks.added
            if blocks.beta != 1:
                added = self._emit("Mul", added, self._constant(np.float32(blocks.beta)))
            if blocks.is_per_channel:
                shape = self._constant(np.array([1, -1, *[1] * blocks.spatial], np.int64))
                added = self._emit("Reshape", added, shape)
            total = self._emit("Add", total, added)
        self._emit("Identity", total, target=node.output[0])

    def _halves(self, integers: str) -> tuple[str, str]:
        """Split shifted integers into an upper and a lower half, both of 8 bits and a sign."""
        if SHIFT:
            divided = self._emit("Mul", integers, self._constant(np.float32(2.0**-SHIFT)))
            integers = self._emit("Floor", divided)
        eighths = self._emit("Mul", integers, self._constant(np.float32(2.0**-8)))
        upper = self._emit("Round", eighths)
        taken = self._emit("Mul", upper, self._constant(np.float32(2.0**8)))
        return upper, self._emit("Sub", integers, taken)

    def _integer_sum(self, blocks: Blocks, block: int, halves: list[tuple[str, str]]) -> str:
        """One 32-bit sum of products, as FP32 (VCVTINTFP32 of Algorithm 2)."""
        cut = [[self._cut(half, blocks, side, block) for half in both] for side, both in enumerate(halves)]
        total = ""
        for i, upper in enumerate(cut[0]):
            for j, lower in enumerate(cut[1]):
                product = self._emit(blocks.op_type, upper, lower, like=blocks.node)
                whole = self._emit("Cast", product, to=int(TensorProto.INT64))
                weight = self._constant(np.int64(2 ** (8 * (2 - i - j))))
                weighed = self._emit("Mul", whole, weight)
                total = self._emit("Add", total, weighed) if total else weighed
        half = self._constant(np.int64(_INT32))
        wrapped = self._emit("Mod", self._emit("Add", total, half), self._constant(np.int64(2 * _INT32)))
        return self._emit("Cast", self._emit("Sub", wrapped, half), to=int(TensorProto.FLOAT))

    def _cut(self, tensor: str, blocks: Blocks, side: int, block: int) -> str:
        if blocks.count == 1:
            return tensor
        axis, first = blocks.axes[side], block * blocks.length
        bounds = [np.array([value], np.int64) for value in (first, first + blocks.length, axis)]
        return self._emit("Slice", tensor, *map(self._constant, bounds))

    def _emit(
        self,
        op_type: str,
        *inputs: str,
        target: str = "",
        like: NodeProto | None = None,
        **attributes: Any,
    ) -> str:
        output = target or fresh(f"dfp16_{op_type}_{len(self._nodes)}", self._taken)
        node = onnx.helper.make_node(op_type, list(inputs), [output], **attributes)
        if like is not None:
            node.domain = like.domain
            node.attribute.extend(a for a in like.attribute if a.name not in ("alpha", "beta"))
        node.name = fresh(f"dfp16_node_{len(self._nodes)}", self._taken)
        self._nodes.append(node)
        return output

    def _constant(self, value: np.generic | NDArray[Any]) -> str:
        array = np.asarray(value)
        key = (f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self._constants:
            self._constants[key] = fresh(f"dfp16_constant_{len(self._constants)}", self._taken)
            self._graph.initializer.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]
