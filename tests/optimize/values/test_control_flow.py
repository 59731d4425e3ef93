"""Values that bodies of If, Loop and Scan read and return are as exact as those of nodes beside them.

Every case is held against FP32 under plans that lower whatever they may, in FP16 and BF16.
"""

import numpy as np
import pytest

from campo_onnx.ir.importer import import_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.values.unrolled import unrolled
from tests.optimize.formulas import Case, assert_as_in_fp32, f32, i64, normal
from tests.optimize.small_steps import STEADY, mixed_of

XW = {"x": normal(64, 64, size=3.0), "w": normal(64, 64, size=1 / 8)}
TABLE = {"x": XW["x"], "t": normal(8, 64)}
SCALARS = {
    "one": 1,
    "zero": 0,
    "eight": 8,
    "hundred": 100,
    "last": 63,
    "tiny": 1e-6,
    "guard": 1e-12,
    "step": 1e-4,
}
SCALARS |= {"far": 500, "rows_of_x": 64}
INDICES = {"first": 0, "axis": 1, "turns": 100, "few": 4}
CONSTANTS = {name: f32(value) for name, value in SCALARS.items()}
CONSTANTS |= {name: i64(value) for name, value in INDICES.items()}
CONSTANTS |= {"go": np.array(True), "zeros": f32(np.zeros(64)), "rows": f32(np.zeros((64, 1, 64)))}


def case(body, feeds=XW):
    return Case(body, CONSTANTS, feeds)


def branch(body, other="Identity(h)"):
    """A branch that is taken beside one that is not."""
    return f"""y = If(go) <then_branch = a () => (float[64,64] g) {{ {body} }},
        else_branch = b () => (float[64,64] e) {{ e = {other} }}>"""


CASES = {
    "an index of what a loop reads": case(
        """h = Sigmoid(x) s = Mul(h, eight) p = Slice(s, first, axis, axis)
        all = Loop<body = b (int64 i, bool c, float[64,1,64] v) => (bool d, float[64,1,64] n) {
            d = Identity(c) f = Floor(p) k = Cast<to = 7>(f) g = Gather(t, k) n = Add(v, g)
        }>(few, go, rows) y = Squeeze(all, axis)""",
        TABLE,
    ),
    "an index of what a branch reads": case(
        """h = Sigmoid(x) s = Mul(h, eight) p = Slice(s, first, axis, axis) q = Squeeze(p, axis)
        """
        + branch("k = Cast<to = 7>(q) g = Gather(t, k)", "Identity(x)"),
        TABLE,
    ),
    "an index in a branch in a loop": case(
        """h = Sigmoid(x) s = Mul(h, eight) p = Slice(s, first, axis, axis) q = Squeeze(p, axis)
        z = Mul(x, zero)
        y = Loop<body = o (int64 i, bool c, float[64,64] v) => (bool d, float[64,64] n) { d = Identity(c)
            n = If(c) <then_branch = a () => (float[64,64] g) {
                    k = Cast<to = 7>(q) r = Gather(t, k) g = Add(v, r) },
                else_branch = b () => (float[64,64] e) { e = Identity(v) }>
        }>(few, go, z)""",
        TABLE,
    ),
    "log(1 - p) of rows": case(
        """h = MatMul(x, w) p = Sigmoid(h)
        l, y = Scan<num_scan_inputs = 1, body = b (float[64] s, float[64] r) => (float[64] n, float[64] o) {
            q = Sub(one, r) a = Add(q, tiny) o = Log(a) n = Add(s, o) }>(zeros, p)"""
    ),
    "log(1 - p) of columns": case(
        """h = MatMul(x, w) p = Sigmoid(h)
        l, y = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
            body = b (float[64] s, float[64] r) => (float[64] n, float[64] o) {
            q = Sub(one, r) a = Add(q, tiny) o = Log(a) n = Add(s, o) }>(zeros, p)"""
    ),
    "an epsilon that a branch adds": case(
        f"""h = MatMul(x, w) hh = Mul(h, zero) {branch("g = Add(hh, guard)").replace("y =", "z =")}
        r = Sqrt(z) y = Div(h, r)"""
    ),
    "small steps of a loop": case(
        """h = MatMul(x, w) p = Tanh(h) v0 = Mul(p, eight)
        z = Loop<body = b (int64 i, bool c, float[64,64] v) => (bool d, float[64,64] n) {
            d = Identity(c) g = Sin(v) s = Mul(g, step) n = Add(v, s) }>(turns, go, v0)
        moved = Sub(z, v0) y = MatMul(moved, w)"""
    ),
    "squares that a scan adds": case(
        """h = MatMul(x, w) a = Mul(h, hundred)
        s = Scan<num_scan_inputs = 1, body = b (float[64] s, float[64] r) => (float[64] n) {
            rr = Mul(r, r) n = Add(s, rr) }>(zeros, a) q = Sqrt(s) y = Div(a, q)"""
    ),
    "a place between pixels": case(
        f"""h = MatMul(x, w) p = Sigmoid(h)
        {branch("c = Mul(p, last) f = Floor(c) g = Sub(c, f)")}"""
    ),
    "an index that a branch makes": case(
        """h = Sigmoid(x) s = Mul(h, eight) p = Slice(s, first, axis, axis) q = Squeeze(p, axis)
        f = If(go) <then_branch = a () => (float[64] g) { g = Floor(q) },
            else_branch = b () => (float[64] e) { e = Identity(q) }> i = Cast<to = 7>(f) y = Gather(t, i)""",
        TABLE,
    ),
    "a clock that a loop reads": case(
        """h = MatMul(x, w) start = Mul(x, hundred)
        z, e = Loop<body = b (int64 i, bool c, float[64,64] v, float[64,64] s)
            => (bool d, float[64,64] n, float[64,64] k) {
            d = Identity(c) k = Add(s, step) g = Sin(k) u = Mul(g, h) n = Add(v, u) }>(few, go, h, start)
        y = MatMul(z, w)"""
    ),
    "a mean that a scan makes of what is far from zero": case(
        """h = MatMul(x, w) a = Add(h, far)
        s = Scan<num_scan_inputs = 1, body = b (float[64] s, float[64] r) => (float[64] n) {
            n = Add(s, r) }>(zeros, a) m = Div(s, rows_of_x) d = Sub(a, m) y = MatMul(d, w)"""
    ),
    "the largest in a branch of what is far from zero": case(
        f"""h = Sigmoid(x) s = Add(h, far)
        {branch("i = ArgMax<axis = 1, keepdims = 0>(s) g = Gather(x, i)", "Identity(x)")}""",
        {"x": XW["x"]},
    ),
    "a mean of what is far from zero": case(
        "h = MatMul(x, w) a = Add(h, far) m = ReduceMean(a, axis) d = Sub(a, m) y = MatMul(d, w)"
    ),
    "a choice between close values": case(
        """h = MatMul(x, w) p = Sigmoid(h) s = Mul(p, step) n = Add(p, s) is_small = Less(x, zero)
        z = Where(is_small, n, p) moved = Sub(z, p) y = MatMul(moved, w)"""
    ),
}


@pytest.mark.parametrize("low", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("strategy", STEADY)
@pytest.mark.parametrize("name", CASES)
def test_bodies_are_right_or_read_fp32(name, strategy, low):
    assert_as_in_fp32(CASES[name], strategy, low)


def test_what_a_product_in_a_body_reads_is_low_all_the_same():
    """A recurrent cell multiplies, squashes and returns its state: nothing there is needed exactly."""
    model = case(
        """h = MatMul(x, w) a = Mul(h, eight)
        l, y = Scan<num_scan_inputs = 1,
            body = b (float[1,64] s, float[64] r) => (float[1,64] n, float[1,64] o) {
            m = MatMul(s, w) k = Add(m, r) n = Tanh(k) o = Identity(n) }>(row, a)"""
    )
    model = Case(model.body, {**CONSTANTS, "row": f32(np.zeros((1, 64)))}, XW, "float[64,1,64] y").model
    assert {"MatMul", "Mul"} <= mixed_of(model, "fine-grained").plan.low_nodes


def test_the_second_turn_of_a_loop_reads_what_the_first_returns():
    view = unrolled(import_model(CASES["small steps of a loop"].model)).imported.view
    second = view.producer["Loop/1/v"]
    assert second.inputs[1:] == ("v0", "Loop/0/n")
    assert view.producer["z"].inputs[1:] == ("v0", "Loop/1/n")
    assert "Loop" not in view.node


def test_a_graph_without_bodies_stays_as_it_is():
    imported = import_model(Case("y = MatMul(x, w)", {}, XW).model)
    assert unrolled(imported).imported is imported
