"""Every field of a plan is executed or checked: real plans with one thing changed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import onnx
import pytest

from campo_onnx import Options, Precision, oplists, target
from campo_onnx.errors import CampoError, PlanMismatchError
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import CAPTURE, Use
from campo_onnx.optimize.plan.edits import Decision, ExistingCast, PadBy, PlannedPad
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.values.ranges import DeclaredRange
from campo_onnx.planning.pipeline import optimize

DATA = Path(__file__).parents[1] / "data"
PRECISIONS = (Precision.FP32, Precision.FP16, Precision.BF16)

# Fields that explain a decision. The file's digest refuses an edited one; nothing else follows from them.
EXPLAINS = {
    Decision: {"op_class", "module", "kind", "source", "decided_by", "facts", "cast_us", "other_cast_us"},
    ExistingCast: {"cast_us"},  # a reused Cast takes its time anyway
    PlannedPad: {"gain_us", "pads_us"},
    Plan: {"source", "lower_bound_us"},
}


def other_values(name: str, value: Any, plan: Plan) -> Iterator[Any]:
    """Values that a field might have instead: neighbours', fewer, more, and none that ever was one."""
    nodes = [d.node for d in plan.decisions[:: len(plan.decisions) // 4 + 1]]
    match value:
        case bool():
            yield not value
        case Precision() | None if name in ("low", "src", "dst", "precision"):
            none = [None] if name == "precision" else []
            yield from (one for one in (*PRECISIONS, *none) if one is not value)
        case Enum():
            yield from (one for one in type(value) if one is not value)
        case str():
            yield f"{value} and more"
            yield from (one for one in ("", *nodes, *(c.tensor for c in plan.casts[:2])) if one != value)
        case int() | float():
            yield from (value + 1, -value - 1)
        case tuple():
            yield from (value[:i] + value[i + 1 :] for i in range(len(value)))
            if name in ("low_inputs", "low_outputs", "follows", "ends"):
                yield from ((*value, 7), (*value, 0), tuple(i + 1 for i in value))
            elif name == "consumers":
                yield from ((*value, Use(node, 0)) for node in (*nodes, "stranger"))
                for node, position in value[:1]:
                    yield from ((*value[1:], Use(node, other)) for other in (position + 1, CAPTURE))
        case Mapping() if name == "ranges":
            yield {"stranger": DeclaredRange(lowest=0.0, highest=1.0)}
        case _:
            raise AssertionError(f"what may {name} be instead of {value!r}?")


def explains(row: Any, name: str) -> bool:
    """Whether nothing is executed by a field: it says why, or what a node would gain, or is left out."""
    if name == "gain_us" and isinstance(row, Decision) and not row.is_lowered:
        return True
    is_left_out = getattr(row, name) is None and name != "precision"
    return is_left_out or name in EXPLAINS.get(type(row), ())


Change = tuple[str, Plan]


def mutants(plan: Plan) -> Iterator[Change]:
    """Plans with one field of one row changed, with what it is; values that refuse themselves are none."""

    def of(row: Any, put: Callable[[Any], Plan], path: str) -> Iterator[Change]:
        for field in fields(row):
            value, here = getattr(row, field.name), f"{path}.{field.name}"
            if explains(row, field.name):
                continue

            def with_it(new: Any, name: str = field.name) -> Plan:
                return put(replace(row, **{name: new}))

            if is_dataclass(value):
                yield from of(value, with_it, here)
                continue
            for i, one in enumerate(value if isinstance(value, tuple) else ()):
                if is_dataclass(one):

                    def with_row(new: Any, i: int = i, rows: Any = value, put_all: Any = with_it) -> Plan:
                        return put_all((*rows[:i], new, *rows[i + 1 :]))

                    yield from of(one, with_row, f"{here}[{i}]")
            for new in other_values(field.name, value, plan):
                if new == value:
                    continue
                try:
                    mutant = with_it(new)
                except (ValueError, CampoError):
                    continue
                yield f"{here} = {new!r:.60}", mutant

    yield from of(plan, lambda new: new, "plan")


# --- plans with something of everything ---

GIVEN_CASTS = """g (float[64,64] x, float[64,64] z) => (float[64,64] y, float16[64,64] o) {
    [a] h = MatMul(x, z) [c] k = Cast<to = 10>(h) [d] n = Neg(k) [u] m = Cast<to = 1>(n) [b] q = MatMul(m, z)
    [e] r = Cast<to = 10>(x) [f] o = Neg(r) [i] s = Cast<to = 10>(h) [j] t = Neg(s) [l] v = Cast<to = 1>(t)
    [p] w = MatMul(q, v) [g] y = Add(w, x) }"""
SHAPES = """g (float[4] x) => (float[2,2] y, int64[1] s, float[4] z)
    <int64[2] t = {2, 2}, float[4] w = {1, 2, 3, 4}> {
    [a] h = Relu(x) [q] s = Shape(h) [m] k = Add(h, w) [b] n = Neg(k) [c] y = Reshape(n, t)
    [e] z = Mul(w, w) }"""
ODD = """g (float[63,61] x, float[59,61] c) => (float[63,61] y) <float[61,59] w = {ONES}> {
    [a] h = MatMul(x, w) [b] k = MatMul(h, c) [d] y = Relu(k) }"""
TRAINING = Options(target=target("v100"), lists=oplists("tf115"), strategy="tf-amp")


def planned(lower: Any, name: str) -> tuple[Imported, Plan]:
    match name:
        case "training step":
            result = optimize(DATA / "mlp.onnx", TRAINING)
            assert result.plan.casts
            assert result.plan.constants
        case "odd sizes":
            v100 = target("v100")
            hardware = replace(v100.hardware, memory_bandwidth_bytes_per_s=1e16)
            fast = replace(v100, hardware=hardware, launch_us=1e-6)
            options = Options(target=fast, lists=oplists("campo"), min_gain=0.0)
            text = ODD.replace("ONES", ", ".join(["1"] * 61 * 59))
            result = optimize(lower(text, []).imported.model, options)
            parts = [p for pad in result.plan.pads for p in (*pad.inputs, *filter(None, [pad.output]))]
            assert {part.by for part in parts} == {*PadBy}
        case "Casts of the given graph":
            result = lower(GIVEN_CASTS, ["a", "b", "p"])
            assert result.plan.dropped
            assert result.plan.reused
        case _:
            result = lower(SHAPES, ["a", "b", "c", "m"])
            assert any(d.follows for d in result.plan.decisions)
            assert any(constant.keeps_fp32 for constant in result.plan.constants)
    return result.imported, result.plan


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["training step", "odd sizes", "Casts of the given graph", "readers of shapes"]
)
def test_a_plan_with_one_thing_changed_is_refused_or_executed(lower: Any, name: str) -> None:
    imported, plan = planned(lower, name)
    as_planned = rewrite(imported, plan)
    silent, refused = [], 0
    for what, mutant in mutants(plan):
        try:
            written = rewrite(imported, mutant)
        except PlanMismatchError:  # exit code 7
            refused += 1
            continue
        onnx.checker.check_model(written, full_check=True)
        if written == as_planned:
            silent.append(what)
    assert refused > len(plan.decisions)
    assert not silent
