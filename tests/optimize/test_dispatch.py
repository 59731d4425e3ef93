"""PyTorch's, NVIDIA's and the fine-grained rules on a graph whose answer is known by hand."""

from functools import partial

import pytest

from campo_onnx.optimize.strategies.dispatch import nvidia_amp, torch_amp
from campo_onnx.optimize.strategies.fine_grained import fine_grained

# c: all inputs low. d: first input low, second a graph input. e: first input FP32, second low.
# f: only a constant beside a low input. g: on the FP32 list. h: downstream of it.
GRAPH = """(float[8, 8] x, float[8, 8] w, float[1, 8] b) => (float[8, 8] y)
<float half = {0.5}> {
  [m1] p = MatMul(x, w)
  [m2] q = MatMul(x, w)
  [c] both = Add(p, q)
  [d] first = Add(p, b)
  [e] second = Sub(b, q)
  [f] scaled = Mul(both, half)
  [g] grown = Exp(scaled)
  [h] after = Relu(grown)
  [s1] s = Add(first, second)
  [s2] y = Add(s, after)
}"""


def test_torch_amp_takes_the_widest_input(problem_from):
    problem = problem_from(GRAPH, lists="pytorch")
    assert torch_amp(problem).low == {"m1", "m2", "c", "f"}


def test_nvidia_amp_follows_the_first_input(problem_from):
    problem = problem_from(GRAPH, lists="nvidia")
    assert nvidia_amp(problem).low == {"m1", "m2", "c", "d", "f", "s1", "s2"}


@pytest.mark.parametrize("strategy", [torch_amp, nvidia_amp, fine_grained])
def test_every_free_node_gets_a_verdict(problem_from, strategy):
    problem = problem_from(GRAPH)
    free = {node.name for node in problem.view.nodes if problem.is_free(node.name)}
    assert strategy(problem).verdicts.keys() == free


def test_a_source_follows_nothing(problem_from):
    graph = """(float[4] x) => (float[4] y) <int64[1] n = {4}> {
      [fill] z = ConstantOfShape<value = float[1] one {1.0}>(n)
      [sum] y = Add(x, z)
    }"""
    assert torch_amp(problem_from(graph, lists="pytorch")).low == frozenset()


def test_fine_grained_keeps_fp32_only_beyond_the_margin(problem_from):
    graph = """(float[4] x) => (float[4] y) {
      [loses_much] a = Relu(x)
      [loses_little] b = Neg(a)
      [gains] y = Abs(b)
    }"""
    costs = {"loses_much": (10.0, 31.0), "loses_little": (10.0, 30.0), "gains": (10.0, 5.0)}
    problem = problem_from(graph, costs=costs)
    assert partial(fine_grained, margin_us=20.0)(problem).low == {"loses_little", "gains"}
    assert partial(fine_grained, margin_us=0.0)(problem).low == {"gains"}
    assert fine_grained(problem).low == {"loses_much", "loses_little", "gains"}  # the paper's 1 ms


def test_fine_grained_respects_taint(problem_from):
    graph = "(float[4] x) => (float[4] y) { [deny] e = Exp(x) [tainted] y = Add(e, x) }"
    assert fine_grained(problem_from(graph)).low == frozenset()
