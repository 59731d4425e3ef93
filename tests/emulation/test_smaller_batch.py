"""A heavy step is tried on fewer rows of data where its shapes tell how, and the summary says so."""

import numpy as np
import pytest
from onnx import parser

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.emulation import affordable, smaller_batch
from campo_onnx.emulation.batches import Batch
from campo_onnx.emulation.probe import probe
from campo_onnx.emulation.smaller_batch import Step, at_batch, batch_of
from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.registry import machine

HEADER = '<ir_version: 10, opset_import: ["": 20]> step '
BODY = """(float[{rows},6,16] x, float[16,16] w) => (float[{rows},6,16] y) {{
    flat = Constant<value = int64[2] {{{flat},16}}>() back = Constant<value = int64[3] {{{rows},6,16}}>()
    r = Reshape(x, flat) h = MatMul(r, w) t = Tanh(h) y = Reshape(t, back) }}"""
POSITIONS = """(float[8,16] x, float[16,16] w) => (float[8,16] y) {
    p = RandomNormal<shape = [8, 16]>() a = Add(x, p) y = MatMul(a, w) }"""
HEAVY = (
    "(float[64,512,1024] x, float[1024,1024] w) => (float[64,512,1024] y) { h = MatMul(x, w) y = Tanh(h) }"
)


def step_of(text: str) -> Step:
    imported = import_model(parser.parse_model(HEADER + text))
    return Step(model=imported.model, view=imported.view)


def test_fewer_rows_give_the_first_rows_of_what_all_give() -> None:
    step = step_of(BODY.format(rows=8, flat=48))
    smaller = at_batch(step, 2)
    assert smaller is not None
    assert (batch_of(step.view), smaller.rows, smaller.of_rows) == (8, 2, 8)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(8, 6, 16)).astype(np.float32), "w": np.eye(16, dtype=np.float32)}
    cut = smaller.cut(feeds)
    assert (cut["x"].shape, cut["w"].shape) == ((2, 6, 16), (16, 16))
    cpu = machine("cpu", 1)
    assert np.array_equal(run(smaller.model, cut, cpu)["y"], run(step.model, feeds, cpu)["y"][:2])
    assert smaller.view.shape("h") == (12, 16)


def test_a_step_with_rows_that_are_not_data_stays_as_it_is() -> None:
    assert at_batch(step_of(POSITIONS), 2) is None


@pytest.mark.parametrize("batches", [[], [{"x": (64, 512, 1024), "w": (1024, 1024)}]])
def test_a_heavy_step_runs_whole_on_fewer_rows(batches: list[dict[str, tuple[int, ...]]]) -> None:
    options = Options(target=target("v100"), lists=oplists("campo"), min_gain=0.0)
    optimized = optimize_model(parser.parse_model(HEADER + HEAVY), options)
    assert optimized.plan.low_nodes
    rng = np.random.default_rng(0)
    own_batches = [
        Batch("mine", {n: rng.normal(size=s).astype(np.float32) * 0.03 for n, s in shapes.items()})
        for shapes in batches
    ]
    outcome = probe(optimized, options, own_batches, budget_s=1.0)
    assert outcome.coverage == 1.0
    assert "of 64 rows of the batch" in outcome.summary


def test_a_graph_of_too_many_nodes_runs_its_first_ones_on_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (affordable, smaller_batch):
        monkeypatch.setattr(module, "MOST_NODES", 4)
    nodes = " ".join(f"h{i} = MatMul(h{i - 1}, w)" for i in range(1, 6))
    text = f"(float[64,512,1024] h0, float[1024,1024] w) => (float[64,512,1024] h5) {{ {nodes} }}"
    step = step_of(text)
    part = affordable.affordable_part(step, 1.0, 1e12, draws=False)
    assert (part.nodes, part.of_nodes, part.step.of_rows) == (4, 5, 64)
    assert [node.output[0] for node in part.model.graph.node] == ["h1", "h2", "h3", "h4"]
    told = part.left_out("1 s")
    assert "rows of the batch and all but the first 4 of 5 nodes" in told
