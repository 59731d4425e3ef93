"""Whether FP16 with Casts beats FP32: Table 1 of the Campo paper against the datasheet estimate.

    python -m benchmarks.table1

The 18 rows come from "Campo: Cost-Aware Performance Optimization for Mixed-Precision Neural Network
Training", USENIX ATC 2022, Table 1 (TensorFlow 1.15, RTX 2080 Ti). Each is one node, estimated for
``rtx2080ti``; nothing is fitted to the rows. Writes results/table1.json and .md.
"""

from statistics import median
from typing import Any

from benchmarks.pages import provenance, publish
from campo_onnx import Precision, target
from campo_onnx.ir.view import FLOAT
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import Ports
from campo_onnx.ops.signature import Signature, make_signature
from campo_onnx.targets.roofline import cast_us_per_element, node_time

DEVICE = "rtx2080ti"
BATCH = 64

Shape = tuple[int, ...]
Node = tuple[Signature, Ports]
Layer = tuple[Shape, Shape, Shape]
Times = dict[str, Any]


def node(
    op: str, inputs: list[Shape], outputs: list[Shape | None], idle: int = -1, **attributes: Any
) -> Node:
    """One operator, all of whose tensors go low but an `idle` input, which the paper's operation lacks."""
    signature = make_signature(
        OpKey.parse(op),
        inputs=[(FLOAT, shape) for shape in inputs],
        outputs=[None if shape is None else (FLOAT, shape) for shape in outputs],
        attributes=attributes,
    )
    asked = frozenset(i for i, shape in enumerate(outputs) if shape is not None)
    return signature, Ports(low_inputs=frozenset(range(len(inputs))) - {idle}, low_outputs=asked)


def layer(size: int, channels: int, filters: int, kernel: int, output_size: int) -> Layer:
    """Shapes of input, filters and output of a convolution: square images, square filters."""
    data, weight = (BATCH, channels, size, size), (filters, channels, kernel, kernel)
    return data, weight, (BATCH, filters, output_size, output_size)


def conv(shapes: Layer) -> Node:
    data, weight, output = shapes
    return node("Conv", [data, weight], [output])


def gradient(shapes: Layer, of: int) -> Node:
    """One of ConvGrad's outputs: 0 the data's gradient, 1 the filters'."""
    data, weight, output = shapes
    outputs = [data, None] if of == 0 else [None, weight]
    return node("com.microsoft:ConvGrad", [output, data, weight], outputs, idle=1 + of)


def matmul(m: int, k: int, n: int) -> Node:
    return node("MatMul", [(m, k), (k, n)], [(m, n)])


def bias_add(channels: int) -> Node:
    return node("Add", [(BATCH, channels), (channels,)], [(BATCH, channels)])


def max_pool(size: int, channels: int, pooled: int) -> Node:
    outputs = [(BATCH, channels, pooled, pooled)]
    return node("MaxPool", [(BATCH, channels, size, size)], outputs, kernel_shape=[3, 3])


STEM_1 = layer(299, 3, 32, 3, 149)
STEM_2 = layer(149, 32, 32, 3, 147)
STEM_3 = layer(147, 32, 64, 3, 147)
BRANCH_5X5 = layer(35, 48, 64, 5, 35)
BRANCH_1X1 = layer(35, 192, 64, 1, 35)
BRANCH_3X3 = layer(37, 96, 96, 3, 35)

FILTER = "Conv2DBackpropFilter"
INPUT = "Conv2DBackpropInput"

# What the paper writes, its times in ms (FP16, FP16 and Casts, FP32), whether tensor cores were used, and the
# node that stands for it.
TABLE_1 = (
    ("MatMul", (2048, 8, 8, 1024), (0.312, 0.353, 0.323), True, matmul(2048, 8, 1024)),
    ("MatMul", (64, 1001, 1001, 2048), (0.412, 0.524, 0.427), False, matmul(64, 1001, 2048)),
    ("MatMul", (2048, 1024, 1024, 1024), (0.414, 0.584, 0.888), True, matmul(2048, 1024, 1024)),
    ("Conv2D", (64, 35, 35, 48), (2.707, 2.795, 3.664), True, conv(BRANCH_5X5)),
    ("Conv2D", (64, 147, 147, 32), (28.965, 29.249, 29.487), False, conv(STEM_3)),
    ("Conv2D", (64, 299, 299, 3), (57.879, 58.944, 60.098), False, conv(STEM_1)),
    (FILTER, (64, 299, 299, 3), (8.690, 9.773, 10.246), False, gradient(STEM_1, 1)),
    (FILTER, (64, 149, 149, 32), (6.013, 7.988, 7.011), False, gradient(STEM_2, 1)),
    (FILTER, (64, 35, 35, 192), (0.786, 0.948, 0.871), True, gradient(BRANCH_1X1, 1)),
    (INPUT, (64, 37, 37, 96), (3.954, 4.049, 6.943), True, gradient(BRANCH_3X3, 0)),
    (INPUT, (64, 149, 149, 32), (15.561, 16.828, 15.696), False, gradient(STEM_2, 0)),
    (INPUT, (64, 35, 35, 192), (5.234, 5.939, 10.060), True, gradient(BRANCH_1X1, 0)),
    ("BiasAdd", (64, 1001, 1001), (0.252, 0.317, 0.255), False, bias_add(1001)),
    ("BiasAdd", (64, 4096, 4096), (0.294, 0.323, 0.298), False, bias_add(4096)),
    ("BiasAdd", (64, 9216, 9216), (0.299, 0.342, 0.311), False, bias_add(9216)),
    ("MaxPool", (64, 35, 35, 288), (1.849, 2.072, 1.793), False, max_pool(35, 288, 17)),
    ("MaxPool", (64, 17, 17, 768), (1.399, 1.542, 1.402), False, max_pool(17, 768, 8)),
    ("MaxPool", (64, 8, 8, 2048), (0.825, 1.128, 0.981), False, max_pool(8, 2048, 8)),
)


def times(fp16_ms: float, fp16_cast_ms: float, fp32_ms: float, on_tensor_cores: bool) -> Times:
    """Times of one operation, the paper's or ours, and the faster precision, Casts included."""
    return {
        "fp16_ms": fp16_ms,
        "fp16_cast_ms": fp16_cast_ms,
        "fp32_ms": fp32_ms,
        "on_tensor_cores": on_tensor_cores,
        "winner": "FP16" if fp16_cast_ms < fp32_ms else "FP32",
    }


def estimated(signature: Signature, ports: Ports) -> Times:
    """Estimate one operation alone, with a Cast for everything it reads and writes."""
    on = target(DEVICE)
    fp32, low = (node_time(signature, ports, on, precision) for precision in (Precision.FP32, Precision.FP16))
    cast = [signature.inputs[i] for i in ports.low_inputs] + [signature.outputs[i] for i in ports.low_outputs]
    r_us = cast_us_per_element(on, Precision.FP16)
    cast_us = sum(on.launch_us + r_us * (tensor.elements or 0) for tensor in cast if tensor is not None)
    return times(low.time_us / 1e3, (low.time_us + cast_us) / 1e3, fp32.time_us / 1e3, low.on_tensor_cores)


def results() -> dict[str, Any]:
    """Put the paper's times and ours side by side, and count where they agree."""
    rows = [
        {"op": op, "size": size, "paper": times(*paper, used), "ours": estimated(*one)}
        for op, size, paper, used, one in TABLE_1
    ]
    both = [(row["paper"], row["ours"]) for row in rows]
    slower = [paper["fp32_ms"] / ours["fp32_ms"] for paper, ours in both]
    added = [(r["paper"]["fp16_cast_ms"] - r["paper"]["fp16_ms"]) * 1e3 for r in rows if r["op"] == "BiasAdd"]
    casts_us = [us / 3 for us in added]  # two inputs, one output
    same_cores = [paper["on_tensor_cores"] == ours["on_tensor_cores"] for paper, ours in both]
    same_winner = [paper["winner"] == ours["winner"] for paper, ours in both]
    return {
        "rows": rows,
        "fp32_ratio": {"least": min(slower), "median": median(slower), "most": max(slower)},
        "paper_cast_us": {"least": min(casts_us), "most": max(casts_us)},
        "assumed_launch_us": target(DEVICE).launch_us,
        "same_tensor_cores": sum(same_cores),
        "same_winner": sum(same_winner),
        "wrong_with_other_tensor_cores": sum(
            not cores and not winner for cores, winner in zip(same_cores, same_winner, strict=True)
        ),
        "fp32_wins": sum(paper["winner"] == "FP32" for paper, _ in both),
    }


def main() -> None:
    """Estimate every row, and write the page."""
    print(*publish("table1", {"made": provenance(), **results()}))


if __name__ == "__main__":
    main()
