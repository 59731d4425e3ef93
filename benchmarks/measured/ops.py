"""Single operators in FP32, in BF16, and in BF16 between Casts: Table 1 of the Campo paper, measured here."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.measured.plans import FP32, folder_of, target_here
from benchmarks.measured.turns import here
from campo_onnx.bench.statistics import MIN_SAMPLES, median_interval, paired_speedup
from campo_onnx.costs.estimated import estimate
from campo_onnx.errors import CampoError
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.view import GraphView
from campo_onnx.measure.one_node import one_node_model, one_node_view, standalone
from campo_onnx.ops.facts import ports_of, work_of
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.optimize.lists.oplists import OpLists, preset
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.registry import runtime_called
from campo_onnx.runtime.timing import Step

Facts = dict[str, Any]

OPS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Add", "MaxPool")
"""As in Table 1: Add is a bias, and gradients of convolutions are Conv, ConvTranspose or MatMul here."""

PER_OP = 3

WIDTHS = (248, 250, 252, 255, 256, 257, 260, 264, 272, 288)
CHANNELS = (28, 30, 31, 32, 33, 36, 40, 48)
"""Sizes around multiples of what vectors and tiles hold: sides of a product, channels of a convolution."""
_COPIES_BYTES = 2**28
_MOST_COPIES, _BLOCK, _ROUNDS = 8, 4, 15
_ROUNDS_S = 2.0


class Drawn(NamedTuple):
    """A node of a network."""

    network: str
    signature: Signature


def drawn(networks: tuple[str, ...], graphs: Path) -> Iterator[Drawn]:
    """Draw nodes of each operator, spread evenly from the longest to the shortest."""
    target = target_here()
    by_op: dict[str, list[tuple[float, Drawn]]] = {op: [] for op in OPS}
    for network in networks:
        path = folder_of(network, graphs) / f"{FP32}.onnx"
        if not path.is_file():
            continue
        view = import_model(path).view
        ports = {node.name: ports_of(view.signature(node.name), Precision.BF16) for node in view.nodes}
        costs = estimate(view, ports, target, Precision.BF16)
        for op in OPS:
            nodes = [node.name for node in view.nodes if node.op.label == op and _is_drawn(view, node.name)]
            nodes.sort(key=lambda name: costs.nodes[name].fp32_us)
            distinct = {view.signature(name).key: name for name in nodes}
            by_op[op] += [
                (costs.nodes[name].fp32_us, Drawn(network, signature))
                for name in distinct.values()
                if (signature := standalone(view, name)) is not None
            ]
    for entries in by_op.values():
        entries.sort(key=lambda entry: -entry[0])
        count = min(PER_OP, len(entries))
        for position in range(count):
            yield entries[position * (len(entries) - 1) // max(1, count - 1)][1]


def _is_drawn(view: GraphView, name: str) -> bool:
    """Whether a node may be low; of additions, those of a bias."""
    signature = view.signature(name)
    if lowered(signature, ports_of(signature, Precision.BF16), Precision.BF16) is None:
        return False
    shapes = [operand.shape for operand in signature.inputs if operand is not None]
    return signature.op.label != "Add" or (len(shapes) == 2 and shapes[0] != shapes[1])


def measured_ops(networks: tuple[str, ...], graphs: Path, threads: int) -> Facts:
    """Measure operators of networks; one that does not run alone is left out, with the reason."""
    began, lists = here(), preset("campo")
    rows, failures = [], {}
    for one in drawn(networks, graphs):
        title = f"{one.signature.op.label} of {one.network}"
        try:
            rows.append(_measured(one, lists, threads))
        except CampoError as error:
            failures[title] = str(error)
    return {**began, "rows": rows, "failures": failures, "widths": list(measured_widths(lists, threads))}


def measured_widths(lists: OpLists, threads: int) -> Iterator[Facts]:
    """Measure a product and a convolution at neighbouring sizes (for Figure 8: which fall off)."""
    for op, sizes in (("MatMul", WIDTHS), ("Conv", CHANNELS)):
        rows = {size: _measured(Drawn("sweep", of_width(op, size)), lists, threads) for size in sizes}
        for size, row in rows.items():
            flops = math.fsum(gemm.flops for gemm in work_of(of_width(op, size)).gemms)
            faster = (o for o in sizes if o > size and _is_faster(rows[o]["us"]["low"], row["us"]["low"]))
            yield {
                "op": op,
                "size": size,
                "shapes": row["shapes"],
                "gflops": {name: flops / row["us"][name]["median"] / 1e3 for name in ("fp32", "low")},
                "larger_and_faster": next(faster, None),
            }


def _is_faster(one: Facts, other: Facts) -> bool:
    return bool(one["high"] < other["low"])


def of_width(op: str, size: int) -> Signature:
    """Give a product of 512 rows and `size` columns inside and out, or a convolution of `size` channels."""
    shapes = ([512, size], [size, size]) if op == "MatMul" else ([8, size, 28, 28], [size, size, 3, 3])
    result = [512, size] if op == "MatMul" else [8, size, 26, 26]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip("abc", (*shapes, result), strict=True)
    ]
    graph = helper.make_graph(
        [helper.make_node(op, ["a", "b"], ["c"], name="node")], op, values[:2], values[2:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    return import_model(model).view.signature("node")


def _measured(one: Drawn, lists: OpLists, threads: int) -> Facts:
    signature = one.signature
    low = lowered(signature, ports_of(signature, Precision.BF16), Precision.BF16)
    assert low is not None  # else it is not drawn
    copies = int(max(1, min(_MOST_COPIES, _COPIES_BYTES // max(signature.nbytes, 1))))
    models = {
        "fp32": one_node_model(signature, copies),
        "low": one_node_model(low, copies),
        "low_casts": between_casts(one_node_model(low, copies)),
    }
    feeds = {name: _feeds(model, signature) for name, model in models.items()}
    runtime, settings = runtime_called("openvino"), LoadSettings()
    steps = {
        name: runtime.load(model, "cpu", threads=threads, settings=settings).placed(feeds[name])
        for name, model in models.items()
    }
    us = {name: [t / copies for t in times] for name, times in _in_blocks(steps).items()}
    ratio = paired_speedup(us["fp32"], us["low_casts"])
    return {
        "op": signature.op.label,
        "network": one.network,
        "op_class": lists.class_of(signature.op).value,
        "shapes": [list(o.shape) for o in signature.inputs if o is not None and o.shape is not None],
        "us": {name: _facts(times) for name, times in us.items()},
        "casts_pay": None
        if ratio is None
        else {"median": ratio.median, "low": ratio.low, "high": ratio.high},
    }


def _facts(times_us: list[float]) -> Facts:
    interval = median_interval(times_us)
    return {"median": interval.median, "low": interval.low, "high": interval.high}


def _in_blocks(steps: dict[str, Step]) -> dict[str, list[float]]:
    """Run steps in blocks, whose first does not count: programs of one process disturb each other."""
    times_us: dict[str, list[float]] = {name: [] for name in steps}
    end_s = time.monotonic() + _ROUNDS_S
    for number in range(_ROUNDS):
        if number >= MIN_SAMPLES and time.monotonic() > end_s:
            break
        for name, step in steps.items():
            step()
            began = time.perf_counter()
            for _ in range(_BLOCK):
                step()
            times_us[name].append((time.perf_counter() - began) / _BLOCK * 1e6)
    return times_us


def between_casts(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give a graph of BF16 inputs and outputs FP32 ones, with a Cast at each."""
    graph, before, after = model.graph, [], []
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type != TensorProto.BFLOAT16:
            continue
        name, is_input = value.name, value in graph.input
        value.name, value.type.tensor_type.elem_type = f"{name}.fp32", TensorProto.FLOAT
        ends = (value.name, name) if is_input else (name, value.name)
        to = TensorProto.BFLOAT16 if is_input else TensorProto.FLOAT
        cast = helper.make_node("Cast", [ends[0]], [ends[1]], name=f"{name}.cast", to=to)
        (before if is_input else after).append(cast)
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _feeds(model: onnx.ModelProto, signature: Signature) -> dict[str, np.ndarray[Any, Any]]:
    """Draw values that the FP32 node takes, in the types of a model's inputs."""
    values = synthesize(one_node_view(signature))
    feeds = {}
    for value in model.graph.input:
        name = value.name.removesuffix(".fp32").rpartition("_")[0]
        drawn_value = values[name]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = (
            drawn_value.astype(dtype) if drawn_value.dtype == np.float32 else drawn_value.copy()
        )
    return feeds
