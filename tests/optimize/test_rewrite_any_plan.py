"""Carrying out any plan of any graph: valid, well cast, and the same values."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from campo_onnx.ir.exporter import export_model
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.precision import Precision

ROOT = Path(__file__).parent.parent.parent
GRAPHS = sorted((ROOT / "tests" / "data").glob("*.onnx"))
STANDARD = [path for path in GRAPHS if "training" not in path.stem]


class Lines:
    """A graph in the making: 4x4 tensors of small integers, which every precision computes exactly."""

    def __init__(self):
        self.lines = []
        self.fp32 = ["x", "z", "w"]
        self.fp16 = []
        self.has_low_version = {"w"}

    def add(self, line, pool=None):
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {line}")
        (self.fp32 if pool is None else pool).append(name)
        return name

    def unary(self, op, a, b):
        self.add(f"{op}({a})")

    def binary(self, op, a, b):
        result = self.add(f"{op}({a}, {b})")
        self.add(f"Min({self.add(f'Max({result}, minus)')}, plus)")

    def shape(self, op, a, b):
        self.add(f"Reshape({a}, {self.add(f'Shape({b})', [])})")

    def split(self, op, a, b):
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name}l, {name}r = Split<axis = 0, num_outputs = 2>({a})")
        self.add(f"Concat<axis = 0>({name}r, {name}l)")

    def where(self, op, a, b):
        self.add(f"Where({self.add(f'Less({a}, {b})', [])}, {a}, {b})")

    def mask(self, op, a, b):
        self.add(f"Cast<to = 1>({self.add(f'Greater({a}, {b})', [])})")

    def branch(self, op, a, b):
        n = len(self.lines)
        then = f"then_branch = s{n} () => (float[4,4] o{n}) {{ o{n} = Sub({a}, {a}) }}"
        otherwise = f"else_branch = e{n} () => (float[4,4] p{n}) {{ p{n} = Identity({b}) }}"
        self.add(f"If (c) <{then}, {otherwise}>")

    def half(self, op, a, b):
        """A part that is low already; two Casts of one tensor would be the given graph's own fault."""
        if a not in self.has_low_version:
            self.has_low_version.add(a)
            self.add(f"Cast<to = 10>({a})", self.fp16)
        elif self.fp16:
            low = self.add(f"Neg({self.fp16[-1]})", [])
            self.has_low_version.add(self.add(f"Cast<to = 1>({low})"))


KINDS = {
    Lines.unary: ("Relu", "Neg", "Abs", "Identity", "Transpose"),
    Lines.binary: ("Add", "Sub", "Mul", "MatMul"),
} | dict.fromkeys((Lines.shape, Lines.split, Lines.where, Lines.mask, Lines.branch, Lines.half), ("",))


@st.composite
def graphs(draw):
    """Draw a graph and which of its tensors are outputs, inputs and initializers among them."""
    body = Lines()
    for kind in draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=9)):
        a, b = draw(st.sampled_from(body.fp32)), draw(st.sampled_from(body.fp32))
        kind(body, draw(st.sampled_from(KINDS[kind])), a, b)
    outputs = {body.fp32[-1], *draw(st.lists(st.sampled_from(body.fp32), max_size=3))}
    typed = [f"float[4,4] {t}" for t in sorted(outputs)] + [f"float16[4,4] {t}" for t in body.fp16[:1]]
    w = ", ".join(str(i % 5 - 2) for i in range(16))
    return (
        f"g (float[4,4] x, float[4,4] z, bool c) => ({', '.join(typed)}) "
        f"<float[4,4] w = {{{w}}}, float minus = {{-3}}, float plus = {{3}}> {{ {' '.join(body.lines)} }}"
    )


FEEDS = {
    "x": np.random.default_rng(1).integers(-3, 4, (4, 4)).astype(np.float32),
    "z": np.random.default_rng(2).integers(-3, 4, (4, 4)).astype(np.float32),
}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs(), data=st.data())
def test_any_plan_of_any_graph_is_valid_and_computes_the_same(lower, run, well_cast, graph, data):
    def some(problem):
        return data.draw(
            st.sets(st.sampled_from(sorted(n for n, p in problem.ports.items() if not p.refusal) or [""]))
        )

    def subset(problem):
        return some(problem) - {""}

    lowered = lower(graph, subset)
    well_cast(lowered.imported, lowered.model)
    onnx.checker.check_model(lowered.model, full_check=True)
    assert len(lowered.casts) - len(lowered.plan.casts) <= graph.count("Cast<")
    for condition in (True, False):
        feeds = FEEDS | {"c": np.array(condition)}
        expected, actual = run(lowered.imported.model, feeds), run(lowered.model, feeds)
        for name, value in expected.items():
            np.testing.assert_array_equal(actual[name], value, err_msg=name)


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
@pytest.mark.parametrize(("share", "precision"), [(1.0, "fp16"), (0.5, "fp16"), (0.1, "fp16"), (0.5, "bf16")])
def test_any_plan_of_a_real_graph_is_valid(lower, run, well_cast, dims_of, tmp_path, path, share, precision):
    chance = np.random.default_rng(int(share * 100))

    def subset(problem):
        # ONNX Runtime's CPU provider cannot draw low random numbers.
        free = [n.name for n in problem.view.nodes if not problem.ports[n.name].refusal]
        return [
            n for n in free if chance.random() < share and "Random" not in problem.view.node[n].op.op_type
        ]

    lowered = lower(path, subset, Precision(precision), dims_of(path))
    assert lowered.plan.low_nodes or share < 0.5
    well_cast(lowered.imported, lowered.model)
    export_model(lowered.model, tmp_path / "mixed.onnx", folder=path.parent)
    if path in STANDARD and precision == "fp16":
        run(tmp_path / "mixed.onnx")


@pytest.mark.parametrize("path", STANDARD, ids=lambda path: path.stem)
def test_lowering_nothing_changes_nothing_but_the_stamp(lower, path):
    lowered = lower(path, [])
    del lowered.model.metadata_props[:]
    expected = import_model(path).model
    del expected.metadata_props[:]
    assert lowered.model == expected
