"""Dynamic fixed point (Das et al., ICLR 2018) as a way to emulate a mixed graph.

No format that ONNX knows: a tensor is 16-bit integers and one exponent that they share, and products
accumulate in 32-bit integers. :func:`emulate_dfp16` writes that down in standard operators, bit by bit: which
nodes are low is what a plan for FP16 decided, what low means is exchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from campo_onnx.emulation.dfp16_products import PRODUCTS, Blocks, blocks_of
from campo_onnx.emulation.numerics import emulate
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.constants import whole
from campo_onnx.ir.convert import with_conversions
from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.shapes import infer
from campo_onnx.ir.sort import fresh, tensor_names
from campo_onnx.lowering.edit import Edit
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
    folder: Path | None = None,
) -> ModelProto:
    """Turn a mixed graph into one that computes as DFP-16 hardware would where the mixed one is low.

    A low tensor is quantized where it is made, with the exponent of its largest magnitude (Eqs. 1 to 3).
    Products of two low tensors multiply integers, sum :data:`CHAIN` of them in 32 bits, which wrap around,
    and add such sums up in FP32 (section 4.3). What a product makes only for FP32, as a weight's gradient, is
    not quantized (section 4.1). All other low nodes compute in FP32 on the values of quantized tensors.

    The result is in FP32, to be run with graph optimizations off.

    `model`: a graph with FP16 or BF16 tensors; not changed. Inputs and outputs are FP32.
    `folder`: where its external data lies.

    Raises UnsupportedModelError if an input or output is low, a body of If, Loop or Scan is, or a product
    cannot be cut into sums.
    """
    emulated = emulate(with_conversions(model, folder), dims)
    for value in (*emulated.graph.input, *emulated.graph.output):
        if is_low_dtype(value.type.tensor_type.elem_type):
            raise UnsupportedModelError(
                f"{value.name!r} enters or leaves the graph in low precision",
                why="nothing outside the graph uses dynamic fixed point",
                remedy="Keep the interface in FP32, as campo-onnx does.",
            )
    _Fixing(emulated, dims or {}, rounding, folder).rewrite()
    return emulated


class _Fixing:
    """One run of :func:`emulate_dfp16`."""

    def __init__(
        self, emulated: ModelProto, dims: Mapping[str, int], rounding: Rounding, folder: Path | None
    ) -> None:
        shapes = infer(emulated, dims)
        self._graph = emulated.graph
        self._dtypes, self._shapes = shapes.dtypes, shapes.shapes
        self._rounding, self._folder = rounding, folder
        self._taken = tensor_names(self._graph) | {node.name for node in self._graph.node}
        self._added: dict[tuple[Any, ...], str] = {}
        self._edit = self._edit_for("dfp16")
        self._fixed: dict[str, _Fixed] = {}
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
        nodes = self._edit.nodes
        for node in self._graph.node:
            self._edit = self._edit_for(f"dfp16/{node.name}")
            self._add(node)
            nodes += self._edit.nodes
        replace_items(self._graph.node, nodes)
        infos = [info for info in self._graph.value_info if not self._is_low(info.name)]
        replace_items(self._graph.value_info, infos)

    def _edit_for(self, stem: str) -> Edit:
        return Edit(stem, self._taken, self._graph.initializer, self._added)

    def _add(self, node: NodeProto) -> None:
        makes_low = any(map(self._is_low, node.output))
        if node.op_type == "Cast" and not node.domain and makes_low:
            self._make_low(node)
        elif makes_low:  # Constant, ConstantOfShape: all other nodes of an emulated graph compute in FP32
            self._make_constant(node)
        elif node.op_type == "Cast" and node.input[0] in self._fixed:
            if self._dtypes.get(node.output[0]) == TensorProto.FLOAT:
                self._fixed[node.output[0]] = self._fixed[node.input[0]]
            self._edit.nodes.append(node)
        elif node.op_type in PRODUCTS and all(t in self._fixed for t in node.input[:2]):
            self._multiply(node)
        else:
            self._edit.nodes.append(node)

    def _make_low(self, cast: NodeProto) -> None:
        source, target = cast.input[0], cast.output[0]
        if source in self._products and target not in self._exact:
            self._exact |= self._only_for_fp32(target) or set()
        if target in self._exact:
            self._edit.op("Identity", source, output=target)
            return
        if self._dtypes.get(source) != TensorProto.FLOAT:
            source = self._edit.op("Cast", source, to=int(TensorProto.FLOAT))
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
        largest = self._edit.op("ReduceMax", self._edit.op("Abs", source), keepdims=0)
        power = self._power_of_two(largest)
        scale = self._edit.op("Mul", power, self._edit.constant(np.float32(2.0 ** (2 - BITS))))
        divided = self._edit.op("Div", source, scale)
        if self._rounding is Rounding.NEAREST:
            whole = self._edit.op("Round", divided)
        else:
            chance = self._edit.op("RandomUniformLike", divided, low=0.0, high=1.0)
            whole = self._edit.op("Floor", self._edit.op("Add", divided, chance))
        limits = (self._edit.constant(np.float32(-(2.0**15))), self._edit.constant(np.float32(2.0**15 - 1)))
        integers = self._edit.op("Clip", whole, *limits)
        value = self._edit.op("Mul", integers, scale)
        # Infinity and NaN have no exponent: they spoil the whole tensor, so that nobody overlooks them.
        nothing = self._edit.op("Mul", source, self._edit.constant(np.float32(0.0)))
        spoiled = self._edit.op("ReduceSum", nothing, keepdims=0)
        self._edit.op("Add", value, spoiled, output=target)
        self._fixed[target] = _Fixed(integers=integers, scale=scale, spoiled=spoiled)

    def _power_of_two(self, largest: str) -> str:
        """The power of two below a magnitude, exactly; 1 for zero."""
        powers = self._edit.constant(np.ldexp(np.float32(1.0), np.arange(-149, 128)).astype(np.float32))
        below = self._edit.op("LessOrEqual", powers, largest)
        result = self._edit.op("Where", below, powers, self._edit.constant(np.float32(0.0)))
        power = self._edit.op("ReduceMax", result, keepdims=0)
        is_zero = self._edit.op("Equal", power, self._edit.constant(np.float32(0.0)))
        return self._edit.op("Where", is_zero, self._edit.constant(np.float32(1.0)), power)

    def _quantize_constant(self, tensor: TensorProto) -> None:
        name = tensor.name
        value = whole(tensor, self._folder).astype(np.float32)
        exact = fresh(f"{name}_fp32", self._taken)
        tensor.CopyFrom(numpy_helper.from_array(value, exact))
        self._quantize(exact, name) if value.size else self._edit.op("Identity", exact, output=name)

    def _make_constant(self, node: NodeProto) -> None:
        low = self._like(node, *node.input)
        self._quantize(self._edit.op("Cast", low, to=int(TensorProto.FLOAT)), node.output[0])

    def _multiply(self, node: NodeProto) -> None:
        first, second = (self._fixed[tensor] for tensor in node.input[:2])
        blocks = blocks_of(node, [self._shapes.get(tensor) for tensor in node.input[:2]], CHAIN)
        halves = [self._halves(factor.integers) for factor in (first, second)]
        total = ""
        for block in range(blocks.count):
            summed = self._integer_sum(blocks, block, halves)
            scaled = self._edit.op("Mul", self._edit.op("Mul", summed, first.scale), second.scale)
            total = self._edit.op("Add", total, scaled) if total else scaled
        total = self._edit.op("Add", total, self._edit.op("Add", first.spoiled, second.spoiled))
        factor = np.float32(blocks.alpha * 4.0**SHIFT)
        if factor != 1:
            total = self._edit.op("Mul", total, self._edit.constant(factor))
        if blocks.added:
            added = blocks.added
            if blocks.beta != 1:
                added = self._edit.op("Mul", added, self._edit.constant(np.float32(blocks.beta)))
            if blocks.is_per_channel:
                shape = self._edit.constant(np.array([1, -1, *[1] * blocks.spatial], np.int64))
                added = self._edit.op("Reshape", added, shape)
            total = self._edit.op("Add", total, added)
        self._edit.op("Identity", total, output=node.output[0])

    def _halves(self, integers: str) -> tuple[str, str]:
        """Split shifted integers into an upper and a lower half, both of 8 bits and a sign."""
        if SHIFT:
            divided = self._edit.op("Mul", integers, self._edit.constant(np.float32(2.0**-SHIFT)))
            integers = self._edit.op("Floor", divided)
        eighths = self._edit.op("Mul", integers, self._edit.constant(np.float32(2.0**-8)))
        upper = self._edit.op("Round", eighths)
        taken = self._edit.op("Mul", upper, self._edit.constant(np.float32(2.0**8)))
        return upper, self._edit.op("Sub", integers, taken)

    def _integer_sum(self, blocks: Blocks, block: int, halves: list[tuple[str, str]]) -> str:
        """One 32-bit sum of products, as FP32 (VCVTINTFP32 of Algorithm 2)."""
        cut = [[self._cut(half, blocks, side, block) for half in both] for side, both in enumerate(halves)]
        total = ""
        for i, upper in enumerate(cut[0]):
            for j, lower in enumerate(cut[1]):
                product = self._like(blocks.node, upper, lower)
                whole = self._edit.op("Cast", product, to=int(TensorProto.INT64))
                weight = self._edit.constant(np.int64(2 ** (8 * (2 - i - j))))
                weighed = self._edit.op("Mul", whole, weight)
                total = self._edit.op("Add", total, weighed) if total else weighed
        half = self._edit.constant(np.int64(_INT32))
        wrapped = self._edit.op(
            "Mod", self._edit.op("Add", total, half), self._edit.constant(np.int64(2 * _INT32))
        )
        return self._edit.op("Cast", self._edit.op("Sub", wrapped, half), to=int(TensorProto.FLOAT))

    def _cut(self, tensor: str, blocks: Blocks, side: int, block: int) -> str:
        if blocks.count == 1:
            return tensor
        axis, first = blocks.axes[side], block * blocks.length
        bounds = [np.array([value], np.int64) for value in (first, first + blocks.length, axis)]
        return self._edit.op("Slice", tensor, *map(self._edit.constant, bounds))

    def _like(self, node: NodeProto, *inputs: str) -> str:
        """Add the operator of a node on other inputs, without the factors of a Gemm."""
        output = self._edit.op(node.op_type, *inputs, domain=node.domain)
        self._edit.nodes[-1].attribute.extend(a for a in node.attribute if a.name not in ("alpha", "beta"))
        return output
