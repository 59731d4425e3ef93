"""Whether FP16 with Casts beats FP32: Table 1 of the Campo paper against the datasheet estimate.

    python -m benchmarks.table1

The 18 rows come from "Campo: Cost-Aware Performance Optimization for Mixed-Precision Neural Network
Training", USENIX ATC 2022, Table 1 (TensorFlow 1.15, RTX 2080 Ti). Each is built as a graph of one node
and estimated for ``rtx2080ti``; nothing is fitted to the rows. Writes results/table1.json and .md.
"""

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks.pages import made, publish
from campo_onnx import Precision, device
from campo_onnx.costs.estimated import estimate
from campo_onnx.ir.view import FLOAT, GraphView, OpNode, TensorInfo, TensorKind
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports

DEVICE = "rtx2080ti"
BATCH = 64
CONV, CONV_GRAD = OpKey("", "Conv"), OpKey("com.microsoft", "ConvGrad")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times of one operation, the paper's or ours."""

    fp16_ms: float
    fp16_cast_ms: float
    fp32_ms: float
    on_tensor_cores: bool

    @property
    def winner(self) -> str:
        """The faster precision, Casts included."""
        return "FP16" if self.fp16_cast_ms < self.fp32_ms else "FP32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One ONNX operator on tensors of given shapes."""

    op: OpKey
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape | None, ...]  # None: not asked for
    attributes: dict[str, Any] = field(default_factory=dict)
    idle_inputs: frozenset[int] = frozenset()  # the schema wants them, the paper's operation has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of Table 1: what the paper writes and measured, and the node that stands for it."""

    op: str
    size: Shape
    paper: Times
    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A convolution of Inception-v3: square images, square filters."""

    size: int
    channels: int
    filters: int
    kernel: int
    output_size: int

    @property
    def shapes(self) -> tuple[Shape, Shape, Shape]:
        """Shapes of input, filters and output."""
        data = (BATCH, self.channels, self.size, self.size)
        weight = (self.filters, self.channels, self.kernel, self.kernel)
        return data, weight, (BATCH, self.filters, self.output_size, self.output_size)


def conv(layer: Layer) -> Node:
    data, weight, output = layer.shapes
    return Node(op=CONV, inputs=(data, weight), outputs=(output,))


def backprop_filter(layer: Layer) -> Node:
    data, weight, output = layer.shapes
    gradients, idle = (None, weight), frozenset({2})
    return Node(op=CONV_GRAD, inputs=(output, data, weight), outputs=gradients, idle_inputs=idle)


def backprop_input(layer: Layer) -> Node:
    data, weight, output = layer.shapes
    gradients, idle = (data, None), frozenset({1})
    return Node(op=CONV_GRAD, inputs=(output, data, weight), outputs=gradients, idle_inputs=idle)


def matmul(m: int, k: int, n: int) -> Node:
    return Node(op=OpKey("", "MatMul"), inputs=((m, k), (k, n)), outputs=((m, n),))


def bias_add(channels: int) -> Node:
    shape = (BATCH, channels)
    return Node(op=OpKey("", "Add"), inputs=(shape, (channels,)), outputs=(shape,))


def max_pool(size: int, channels: int, pooled: int) -> Node:
    images, kernel = (BATCH, channels, size, size), {"kernel_shape": [3, 3]}
    outputs = ((BATCH, channels, pooled, pooled),)
    return Node(op=OpKey("", "MaxPool"), inputs=(images,), outputs=outputs, attributes=kernel)


def row(op: str, size: Shape, times_ms: tuple[float, float, float], on_tensor_cores: bool, node: Node) -> Row:
    fp16, cast, fp32 = times_ms
    paper = Times(fp16_ms=fp16, fp16_cast_ms=cast, fp32_ms=fp32, on_tensor_cores=on_tensor_cores)
    return Row(op=op, size=size, paper=paper, node=node)


STEM_1 = Layer(size=299, channels=3, filters=32, kernel=3, output_size=149)
STEM_2 = Layer(size=149, channels=32, filters=32, kernel=3, output_size=147)
STEM_3 = Layer(size=147, channels=32, filters=64, kernel=3, output_size=147)
BRANCH_5X5 = Layer(size=35, channels=48, filters=64, kernel=5, output_size=35)
BRANCH_1X1 = Layer(size=35, channels=192, filters=64, kernel=1, output_size=35)
BRANCH_3X3 = Layer(size=37, channels=96, filters=96, kernel=3, output_size=35)

FILTER = "Conv2DBackpropFilter"
INPUT = "Conv2DBackpropInput"

TABLE_1 = (
    row("MatMul", (2048, 8, 8, 1024), (0.312, 0.353, 0.323), True, matmul(2048, 8, 1024)),
    row("MatMul", (64, 1001, 1001, 2048), (0.412, 0.524, 0.427), False, matmul(64, 1001, 2048)),
    row("MatMul", (2048, 1024, 1024, 1024), (0.414, 0.584, 0.888), True, matmul(2048, 1024, 1024)),
    row("Conv2D", (64, 35, 35, 48), (2.707, 2.795, 3.664), True, conv(BRANCH_5X5)),
    row("Conv2D", (64, 147, 147, 32), (28.965, 29.249, 29.487), False, conv(STEM_3)),
    row("Conv2D", (64, 299, 299, 3), (57.879, 58.944, 60.098), False, conv(STEM_1)),
    row(FILTER, (64, 299, 299, 3), (8.690, 9.773, 10.246), False, backprop_filter(STEM_1)),
    row(FILTER, (64, 149, 149, 32), (6.013, 7.988, 7.011), False, backprop_filter(STEM_2)),
    row(FILTER, (64, 35, 35, 192), (0.786, 0.948, 0.871), True, backprop_filter(BRANCH_1X1)),
    row(INPUT, (64, 37, 37, 96), (3.954, 4.049, 6.943), True, backprop_input(BRANCH_3X3)),
    row(INPUT, (64, 149, 149, 32), (15.561, 16.828, 15.696), False, backprop_input(STEM_2)),
    row(INPUT, (64, 35, 35, 192), (5.234, 5.939, 10.060), True, backprop_input(BRANCH_1X1)),
    row("BiasAdd", (64, 1001, 1001), (0.252, 0.317, 0.255), False, bias_add(1001)),
    row("BiasAdd", (64, 4096, 4096), (0.294, 0.323, 0.298), False, bias_add(4096)),
    row("BiasAdd", (64, 9216, 9216), (0.299, 0.342, 0.311), False, bias_add(9216)),
    row("MaxPool", (64, 35, 35, 288), (1.849, 2.072, 1.793), False, max_pool(35, 288, 17)),
    row("MaxPool", (64, 17, 17, 768), (1.399, 1.542, 1.402), False, max_pool(17, 768, 8)),
    row("MaxPool", (64, 8, 8, 2048), (0.825, 1.128, 0.981), False, max_pool(8, 2048, 8)),
)


def estimate_row(node: Node) -> Times:
    """Estimate one operation alone, with a Cast for everything it reads and writes."""
    view, ports = one_node_view(node)
    table = estimate(view, {"node": ports}, device(DEVICE), Precision.FP16)
    cost = table.nodes["node"]
    cast_tensors = [view.nodes[0].inputs[i] for i in ports.low_inputs]
    cast_tensors += [view.nodes[0].outputs[i] for i in ports.low_outputs]
    cast_us = sum(table.cast.cast_us(view.tensors[tensor].elements or 0) for tensor in cast_tensors)
    return Times(
        fp16_ms=cost.low_us / 1e3,
        fp16_cast_ms=(cost.low_us + cast_us) / 1e3,
        fp32_ms=cost.fp32_us / 1e3,
        on_tensor_cores=cost.on_tensor_cores,
    )


def one_node_view(node: Node) -> tuple[GraphView, Ports]:
    """Build a graph of the node alone, all of whose FP32 tensors go low with it."""
    inputs = tuple(f"in{i}" for i in range(len(node.inputs)))
    outputs = tuple("" if shape is None else f"out{i}" for i, shape in enumerate(node.outputs))
    shapes = dict(zip((*inputs, *outputs), (*node.inputs, *node.outputs), strict=True))
    shapes.pop("", None)
    view = GraphView(
        nodes=(OpNode(name="node", op=node.op, inputs=inputs, outputs=outputs, attributes=node.attributes),),
        tensors={
            name: TensorInfo(name=name, dtype=FLOAT, shape=shape, kind=TensorKind.ACTIVATION)
            for name, shape in shapes.items()
        },
        inputs=inputs,
        outputs=tuple(name for name in outputs if name),
        opset={"": 20, "com.microsoft": 1},
    )
    ports = Ports(
        low_inputs=frozenset(range(len(inputs))) - node.idle_inputs,
        low_outputs=frozenset(i for i, name in enumerate(outputs) if name),
    )
    return view, ports


def results(estimates: tuple[Times, ...]) -> dict[str, Any]:
    """Put the paper's times and ours side by side, and count where they agree."""
    pairs = list(zip(TABLE_1, estimates, strict=True))
    slower = [row.paper.fp32_ms / ours.fp32_ms for row, ours in pairs]
    casts_us = [  # two inputs, one output
        (r.paper.fp16_cast_ms - r.paper.fp16_ms) * 1e3 / 3 for r in TABLE_1 if r.op == "BiasAdd"
    ]
    wrong = [pair for pair in pairs if pair[0].paper.winner != pair[1].winner]
    return {
        "rows": [
            {
                "op": row.op,
                "size": row.size,
                "paper": asdict(row.paper) | {"winner": row.paper.winner},
                "ours": asdict(ours) | {"winner": ours.winner},
            }
            for row, ours in pairs
        ],
        "fp32_ratio": {"least": min(slower), "median": median(slower), "most": max(slower)},
        "paper_cast_us": {"least": min(casts_us), "most": max(casts_us)},
        "assumed_launch_us": device(DEVICE).launch_us,
        "same_tensor_cores": sum(r.paper.on_tensor_cores == ours.on_tensor_cores for r, ours in pairs),
        "same_winner": len(pairs) - len(wrong),
        "wrong_with_other_tensor_cores": sum(r.paper.on_tensor_cores != o.on_tensor_cores for r, o in wrong),
        "fp32_wins": sum(row.paper.winner == "FP32" for row in TABLE_1),
    }


def main() -> None:
    """Estimate every row, and write the page."""
    estimates = tuple(estimate_row(row.node) for row in TABLE_1)
    print(*publish("table1", {"made": made(), **results(estimates)}))


if __name__ == "__main__":
    main()
