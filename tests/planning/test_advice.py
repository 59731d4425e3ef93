"""Advice where nothing pays comes from planning, and holds."""

import math
from dataclasses import replace

import pytest

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.optimize.lists.oplists import with_overrides
from campo_onnx.planning.advice import advice

CHAIN = """
    agraph (float[B,1024] x, float[1024,1024] a, float[1024,1024] b) => (float[B,1024] y)
    { h = MatMul (x, a)  i = Relu (h)  y = MatMul (i, b) }
"""


@pytest.fixture
def options():
    return Options(target=target("h200"), lists=oplists("campo"), dims={"B": 64})


def test_the_batch_from_which_it_pays_is_the_first_that_does(model_text, options):
    model = model_text(CHAIN)
    told = advice(optimize_model(model, options), options, patience_s=math.inf)
    (sentence,) = [s for s in told if "--dim B=" in s]
    size = int(sentence.split("--dim B=")[1].split()[0])
    there = optimize_model(model, replace(options, dims={"B": size})).plan
    assert f"{there.speedup:.2f}x" in sentence
    assert there.low_nodes
    assert not optimize_model(model, replace(options, dims={"B": size // 2})).plan.low_nodes


def test_other_ways_are_tried(model_text, options):
    small = replace(options, dims={"B": 512})
    optimized = optimize_model(model_text(CHAIN), small)
    told = " ".join(advice(optimized, small, patience_s=math.inf))
    captured = optimize_model(model_text(CHAIN), replace(small, target=small.target.captured)).plan
    assert ("--execution graph" in told) == bool(captured.low_nodes and not optimized.plan.low_nodes)
    if not optimized.plan.low_nodes:
        best = max(
            (optimize_model(model_text(CHAIN), replace(small, target=target(name))).plan.speedup, name)
            for name in ("v100", "rtx2080ti", "t4", "a100", "l4", "rtx4090", "h100")
        )
        assert f"{best[0]:.2f}x with --device {best[1]}" in told


def test_where_it_pays_or_was_done_nothing_is_said(model_text, options):
    large = replace(options, dims={"B": 65536})
    done = optimize_model(model_text(CHAIN), large)
    assert done.plan.low_nodes
    assert advice(done, large) == ()
    assert advice(optimize_model(done.model, large), large) == ()


def test_defaults(model_text):
    """Without options: this machine's GPU or an H200, and the lists campo."""
    plan = optimize_model(model_text(CHAIN.replace("B", "4096"))).plan
    assert (plan.strategy, plan.lists, plan.source) == ("optimal", "campo", "datasheet")


@pytest.mark.parametrize(
    ("change", "said", "not_said"),
    [
        (
            {"lists": with_overrides(oplists("campo"), deny=("MatMul",))},
            "is in operators on the deny list",
            "batch",
        ),
        ({"min_gain": 0.99}, "99.0% is asked for. --min-gain 0 takes", "No node may"),
        ({"target": target("cpu")}, "with --device", "batch"),
    ],
)
def test_the_cause_is_said(model_text, options, change, said, not_said):
    there = replace(options, dims={"B": 65536}, **change)
    told = " ".join(advice(optimize_model(model_text(CHAIN), there), there, patience_s=math.inf))
    assert said in told
    assert not not_said or not_said not in told
