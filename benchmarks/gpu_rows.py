"""Forms of what batch normalization does to rows, the channels of each image: sums, scalings, sums of two."""

from collections.abc import Mapping
from typing import Any

import onnx

from benchmarks.gpu_machine import LOW, Session
from benchmarks.steps import Call
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.feeds import Feeds, synthesize
from campo_onnx.runtime.registry import load
from campo_onnx.runtime.timing import Effort, measure

_EFFORT = Effort(warmup=2, repeats=8, least=3, budget_s=0.1, spin_s=0.02)
_SHAPES = ((128, 64, 12544), (128, 256, 3136), (128, 512, 784), (128, 1024, 196), (128, 2048, 49))
"""Images, channels, elements of each: those of ResNet-50."""

_X, _ROW = "{0},{1},{2}", "{0},{1},1"
_FLAT = "flat = Constant <value_ints = [1, {rows}, {2}]> () f = Reshape (x, flat)"
_VECTOR = "vector = Constant <value_ints = [{rows}]> () v = Reshape (r, vector)"
_COLUMN = "column = Constant <value_ints = [{rows}, 1]> () v = Reshape (r, column)"

FORMS: Mapping[str, tuple[str, str]] = {
    "ReduceSum": (_ROW, "last = Constant <value_ints = [2]> () y = ReduceSum (x, last)"),
    "GlobalAveragePool": (
        "{0},{1},1,1",
        "image = Constant <value_ints = [{0}, {1}, {height}, {width}]> () i = Reshape (x, image) "
        "y = GlobalAveragePool (i)",
    ),
    "LayerNormalization": (_X, "y = LayerNormalization <axis = 2> (x, ones)"),
    "BatchNormalization": (
        "1,{rows},{2}",
        f"{_FLAT} {_VECTOR} zero = Sub (v, v) y = BatchNormalization <epsilon = 1.0> (f, v, v, zero, zero)",
    ),
    "Mul, Add": ("1,{rows},{2}", f"{_FLAT} {_COLUMN} m = Mul (f, v) y = Add (m, v)"),
    "Mul, GatedAdd": (_X, "m = Mul (x, r) y = com.microsoft.GatedAdd (m, dy, r)"),
    "HyperConnectionPostMix": (
        "{rows},{2}",
        "rows = Constant <value_ints = [{rows}, {2}]> () a = Reshape (x, rows) b = Reshape (dy, rows) "
        "one = Constant <value_ints = [{rows}, 1]> () gate = Reshape (r, one) "
        "square = Constant <value_ints = [{rows}, 1, 1]> () share = Reshape (r, square) "
        "y = com.microsoft.HyperConnectionPostMix <num_branches = 1> (a, b, gate, share)",
    ),
}
"""By name: the shape of the result, and the nodes."""


def row_forms(session: Session, call: Call) -> list[dict[str, Any]]:
    """Time every form, in both precisions."""
    shapes = [(2, 4, 49)] if session.on_cpu else _SHAPES
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        for precision in (Precision.FP32, LOW):
            feeds: Feeds | None = None
            times_us: dict[str, float] = {}
            for name in FORMS:
                imported = import_model(form(name, shape, precision))
                feeds = feeds or synthesize(imported.view)
                step = load(imported.model, session.bench.machine).placed(feeds)
                times_us[name] = measure(step, _EFFORT).median_us
                call.deadline.tick(len(rows), 2 * len(shapes))
            rows.append({"shape": shape, "precision": precision.value, "us": times_us})
    return rows


def form(name: str, shape: tuple[int, int, int], precision: Precision) -> onnx.ModelProto:
    """Write a form as a graph, all of the same inputs.

    Raises KeyError for a form that there is not.
    """
    result, nodes = FORMS[name]
    images, channels, length = shape
    height = max(n for n in range(1, int(length**0.5) + 1) if length % n == 0)
    kind = "float" if precision is Precision.FP32 else "float16"
    text = f"""
        <ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]>
        rows ({kind}[{_X}] x, {kind}[{_X}] dy, {kind}[{_ROW}] r, {kind}[{{2}}] ones)
            => ({kind}[{result}] y) {{{{ {nodes} }}}}
    """
    sizes = {"rows": images * channels, "height": height, "width": length // height}
    return onnx.parser.parse_model(text.format(images, channels, length, **sizes))
