"""A plan tried on data: what makes the step wrong stays FP32, and the rest is as it was planned."""

import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from onnx import parser

from campo_onnx import Options, Precision, oplists, optimize_model, target
from campo_onnx.emulation import probe as probing
from campo_onnx.emulation.batches import Batch, draw_batches
from campo_onnx.emulation.faults import ProbedBatch
from campo_onnx.emulation.numerics import emulate, seeded
from campo_onnx.emulation.probe import Probed, probe, wrongdoers
from campo_onnx.emulation.rounded import rounded
from campo_onnx.errors import UsageError
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize import eligibility
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.planning.pipeline import Optimized
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.registry import machine

# Launches that cost nothing: so small a graph has precisions worth choosing.
DEVICES = {
    low: replace(target(name), launch_us=1e-6, host_us=1e-6)
    for low, name in ((Precision.FP16, "v100"), (Precision.BF16, "h200"))
}
HEADER = '<ir_version: 10, opset_import: ["": 20]> step '
DENSE = "(float[64, 256] x, float[256, 256] w) => (float[64, 256] y)"

# Wrong on ordinary data.
SILENT = {
    "samples of audio": (
        f"{DENSE} {{ [k] k = Constant<value_float = 32768.0>() [mul] h = Mul(x, k) [dot] y = MatMul(h, w) }}",
        Reason.PROBE_NOT_FINITE,
        {"dot"},
    ),
    "what rounding takes off": (
        f"{DENSE} {{ [low] h = Cast<to = 10>(x) [wide] f = Cast<to = 1>(h) [sub] d = Sub(x, f) "
        "[dot] y = MatMul(d, w) }",
        Reason.PROBE_ERROR,
        {"sub"},
    ),
    "an index by Floor": (
        "(float[64] x, float[1024, 256] t, float[256, 256] w) => (float[64, 256] y) { "
        "[k] k = Constant<value_float = 1023.0>() [sigmoid] s = Sigmoid(x) [mul] h = Mul(s, k) "
        "[floor] f = Floor(h) [index] i = Cast<to = 7>(f) [rows] e = Gather(t, i) [dot] y = MatMul(e, w) }",
        Reason.PROBE_INTEGERS,
        {"sigmoid", "mul", "floor"},
    ),
}
HARMLESS = f"{DENSE} {{ [m1] h = MatMul(x, w) [relu] r = Relu(h) [m2] y = MatMul(r, w) }}"


def planned(text: str, low: Precision = Precision.FP16) -> tuple[Optimized, Options]:
    options = Options(target=DEVICES[low], lists=oplists("campo"), low=low, min_gain=0.0)
    return optimize_model(parser.parse_model(HEADER + text), options), options


def tried(text: str, **settings: float) -> Probed:
    optimized, options = planned(text)
    return probe(optimized, options, **settings)


@pytest.fixture
def no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan without the rules over values: what they forbid one day must be found on data all the same."""
    monkeypatch.setattr(eligibility, "value_verdicts", lambda *_: {})


@pytest.mark.parametrize("case", SILENT)
@pytest.mark.usefixtures("no_rules")
def test_what_makes_the_step_wrong_stays_fp32_with_its_figures(case: str) -> None:
    text, reason, nodes = SILENT[case]
    before, _ = planned(text)
    outcome = tried(text)
    after = outcome.optimized.plan
    assert nodes & before.plan.low_nodes
    assert nodes <= outcome.fp32.keys()
    assert not nodes & after.low_nodes
    for decision in after.decisions:
        if decision.node in outcome.fp32:
            assert decision.decided_by is outcome.fp32[decision.node].decided_by is reason
            assert "ordinary values" in decision.reason
    again = probe(outcome.optimized, planned(text)[1])
    assert not again.fp32


@pytest.mark.parametrize("low", DEVICES, ids=str)
def test_a_plain_network_stays_as_it_was_planned(low: Precision) -> None:
    optimized, options = planned(HARMLESS, low)
    outcome = probe(optimized, options)
    assert optimized.plan.low_nodes == {"m1", "relu", "m2"}
    assert outcome.optimized is optimized
    assert not outcome.fp32
    assert outcome.coverage == 1.0
    assert outcome.batches[0] == "ordinary values"
    assert "100% of the low nodes ran; nothing is wrong" in outcome.summary


def test_a_file_that_is_low_in_part_is_tried_as_well() -> None:
    """Emulating what is low in it adds tensors that the step does not have."""
    inputs = "(float[64, 256] x, float[256, 256] w, bfloat16[4] b) => (float[64, 256] y, bfloat16[4] n)"
    outcome = tried(f"{inputs} {{ [dot] y = MatMul(x, w) [neg] n = Neg(b) }}")
    assert outcome.optimized.plan.low_nodes == {"dot"}
    assert outcome.batches


def test_an_input_that_no_node_reads_has_a_value() -> None:
    """ONNX Runtime asks for one all the same."""
    inputs = "(float[64, 256] x, float[256, 256] w, float[4] unread) => (float[64, 256] y)"
    outcome = tried(f"{inputs} {{ [dot] y = MatMul(x, w) }}")
    assert outcome.batches
    assert outcome.coverage == 1.0


@pytest.mark.usefixtures("no_rules")
def test_the_same_plan_comes_again() -> None:
    text = SILENT["an index by Floor"][0]
    first, second = tried(text), tried(text)
    assert first.optimized.plan == second.optimized.plan
    assert first.fp32 == second.fp32


@pytest.mark.usefixtures("no_rules")
def test_the_batches_of_the_user_are_the_ones_that_count() -> None:
    text = f"{DENSE} {{ [square] h = Mul(x, x) [dot] y = MatMul(h, w) }}"
    optimized, options = planned(text)
    w = np.full((256, 256), 1e-3, np.float32)
    outcomes = {
        size: probe(
            optimized, options, [Batch(f"{size}.npz", {"x": np.full((64, 256), size, np.float32), "w": w})]
        )
        for size in (1.0, 300.0)
    }
    assert not outcomes[1.0].fp32
    assert {"square", "dot"} <= outcomes[300.0].fp32.keys()
    assert "300.0.npz" in outcomes[300.0].fp32["square"].reason


def test_a_step_beyond_the_budget_runs_in_its_first_part_only() -> None:
    layers = " ".join(f"[m{i}] h{i + 1} = MatMul(h{i}, w)" for i in range(40))
    text = f"(float[64, 256] h0, float[256, 256] w) => (float[64, 256] h40) {{ {layers} }}"
    whole, part, none = (tried(text, budget_s=s) for s in (10.0, 0.01, 1e-9))
    assert whole.coverage == 1.0
    assert 0.0 < part.coverage < 1.0
    assert f"{part.coverage:.0%} of the low nodes ran" in part.summary
    assert none.coverage == 0.0
    assert none.summary.startswith("The plan was not tried on data")


def test_the_default_budget_grows_with_the_nodes_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "MOST_BYTES", 1 << 20)
    assert "within 5 s and" in tried(chain(3, "1024, 1024")).summary
    monkeypatch.setattr(probing, "_NODE_BUDGET_S", 100.0)
    assert "within 12 s and" in tried(chain(3, "1024, 1024")).summary


def chain(layers: int, weight: str) -> str:
    """Products one after another, each with a weight of its own."""
    weights = ", ".join(f"float[{weight}] w{i}" for i in range(layers))
    nodes = " ".join(f"[m{i}] h{i + 1} = MatMul(h{i}, w{i})" for i in range(layers))
    return f"(float[512, 1024] h0, {weights}) => (float[512, 1024] h{layers}) {{ {nodes} }}"


def test_memory_is_bounded_before_anything_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "MOST_BYTES", 48 << 20)
    optimized, options = planned(chain(40, "1024, 1024"))
    assert sum(optimized.problem.view.tensors[f"w{i}"].nbytes for i in range(40)) > 3 * (48 << 20)
    tracemalloc.start()
    try:
        outcome = probe(optimized, options, budget_s=100.0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 48 << 20
    assert 0.0 < outcome.coverage < 1.0
    assert "of 40 nodes, to keep within 100 s and 50.3 MB of memory" in outcome.summary


def test_little_free_memory_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "free_bytes", lambda: 4 * (48 << 20))
    assert 0.0 < tried(chain(40, "1024, 1024"), budget_s=100.0).coverage < 1.0


def test_drawing_values_counts_as_time() -> None:
    drawn = tried(chain(40, "1024, 1024"), budget_s=1.0)
    assert 0.0 < drawn.coverage < 1.0
    assert len(drawn.batches) == 1


def test_an_input_that_does_not_fit_ends_the_part_that_runs() -> None:
    text = (
        "(float[64, 256] x, float[256, 256] w, float[256, 900000000] huge) => "
        "(float[64, 900000000] y) { [m1] h = MatMul(x, w) [r] r = Relu(h) [m2] y = MatMul(r, huge) }"
    )
    outcome = tried(text)
    assert outcome.batches
    assert "all but the first 2 of 3 nodes" in outcome.summary


def test_a_budget_must_be_positive() -> None:
    with pytest.raises(UsageError, match="budget"):
        tried(HARMLESS, budget_s=0.0)


def test_what_onnx_runtime_does_not_run_is_left_as_planned() -> None:
    text = f"{DENSE} {{ [m1] h = MatMul(x, w) [own] r = org.example.Own(h) [m2] y = MatMul(r, w) }}"
    model = parser.parse_model(HEADER.replace('"": 20', '"": 20, "org.example": 1') + text)
    options = planned(HARMLESS)[1]
    optimized = optimize_model(model, options)
    outcome = probe(optimized, options)
    assert optimized.plan.low_nodes
    assert outcome.optimized is optimized
    assert "does not run on ordinary values" in outcome.summary


def test_rounding_without_a_plan_is_that_of_the_plan() -> None:
    text = (
        f"{DENSE} {{ [m1] h = MatMul(x, w) [tanh] t = Tanh(h) [exp] e = Exp(t) [add] s = Add(e, h) "
        "[m2] y = MatMul(s, w) }"
    )
    optimized, _ = planned(text)
    view, plan = optimized.imported.view, optimized.plan
    assert plan.low_nodes
    feeds = next(iter(draw_batches(view))).feeds
    own = rounded(optimized.imported.model, plan.low_nodes, optimized.problem.ports, plan.low)
    here = machine("cpu", 1)
    expected = run(emulate(optimized.model), feeds, here)
    assert np.array_equal(run(own, feeds, here)["y"], expected["y"])
    assert not np.array_equal(run(optimized.imported.model, feeds, here)["y"], expected["y"])


# --- the search by halves ------------------------------------------------------------------------


def search(
    wrong_alone: set[str],
    most_together: int = 99,
    count: int = 16,
    effects: Mapping[str, float] = MappingProxyType({}),
    **limit: int,
) -> Mapping[str, Verdict]:
    """Search a chain in which some nodes are wrong, and more than some number of the rest together."""
    chain = " ".join(f"[n{i}] t{i + 1} = Relu(t{i})" for i in range(count))
    text = f"(float[2] t0) => (float[2] t{count}) {{ {chain} }}"
    view = import_model(parser.parse_model(HEADER + text)).view
    verdict = Verdict(
        decided_by=Reason.PROBE_FAILS, facts={"failure": "it fails", "low": "fp16", "batch": "one"}
    )

    def wrong(names: frozenset[str]) -> tuple[Verdict, ...]:
        return (verdict,) if names & wrong_alone or len(names) > most_together else ()

    def effect(names: frozenset[str]) -> float:
        return max(effects.get(name, 0.0) for name in names)

    return wrongdoers([f"n{i}" for i in range(count)], wrong, effect, view, **limit)


def test_each_node_that_is_wrong_alone_is_found_and_no_other() -> None:
    assert search(set()) == {}
    assert search({"n3"}).keys() == {"n3"}
    assert search({"n0", "n7", "n15"}).keys() == {"n0", "n7", "n15"}


@pytest.mark.parametrize("steps", range(1, 40, 3))
def test_a_search_whose_time_is_used_up_ends_and_leaves_nothing_wrong(steps: int) -> None:
    view = import_model(parser.parse_model(HEADER + HARMLESS)).view
    names, culprits = [f"n{i}" for i in range(64)], frozenset({"n3", "n40"})
    verdict = Verdict(decided_by=Reason.PROBE_FAILS, facts={"failure": "", "low": "fp16", "batch": "one"})
    ran = 0

    def wrong(some: frozenset[str]) -> tuple[Verdict, ...]:
        nonlocal ran
        ran += 1
        return (verdict,) if some & culprits or len(some) > 40 else ()

    def effect(some: frozenset[str]) -> float:
        nonlocal ran
        ran += 1
        return float(len(some))

    verdicts = wrongdoers(names, wrong, effect, view, is_over=lambda: ran >= steps)
    assert culprits <= verdicts.keys()
    assert len(names) - len(verdicts) <= 40
    depth = 6  # of halves: at each there is one left to try
    assert ran <= steps + depth + 2


def test_of_nodes_that_are_wrong_together_those_of_the_largest_effect_go() -> None:
    effects = {"n1": 4.0, "n5": 3.0, "n6": 2.0, "n9": 5.0}
    assert search(set(), most_together=12, effects=effects).keys() == effects.keys()
    assert search({"n2"}, most_together=12, effects=effects).keys() == {"n2", "n1", "n5", "n9"}
    assert search(set(), most_together=12).keys() == {"n12", "n13", "n14", "n15"}


def test_a_search_that_ends_early_keeps_more_in_fp32() -> None:
    assert {"n3", "n12"} <= search({"n3", "n12"}, most_trials=4).keys() < {f"n{i}" for i in range(16)}


@pytest.mark.usefixtures("no_rules")
def test_all_searches_of_a_plan_share_their_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = range(6)
    rows = " ".join(
        f"s{i} = Sigmoid(x{i}) h{i} = Mul(s{i}, k) f{i} = Floor(h{i}) i{i} = Cast<to = 7>(f{i}) "
        f"e{i} = Gather(t, i{i}) y{i} = MatMul(e{i}, w)"
        for i in tables
    )
    text = (
        f"({', '.join(f'float[64] x{i}' for i in tables)}, float[1024, 256] t, float[256, 256] w) => "
        f"({', '.join(f'float[64, 256] y{i}' for i in tables)}) "
        f"{{ k = Constant<value_float = 1023.0>() {rows} }}"
    )
    thorough = tried(text)
    monkeypatch.setattr(probing, "_SEARCH_BUDGETS", 0.0)
    brief = tried(text)
    assert brief.trials < 12 + 8 < thorough.trials  # each search that is under way ends with a trial a level
    assert thorough.fp32.keys() <= brief.fp32.keys()
    assert not probe(brief.optimized, planned(text)[1]).fp32


RANDOM_NODES = {
    "Dropout, which takes a seed since opset 12": (10, "y = Dropout(x)"),
    "Dropout in a body": (
        20,
        "c = Constant<value_int=1>() t = Cast<to=9>(c) y = If(t) <then_branch = a () => (float[64] p)"
        ' { p = Dropout(x, "", t) }, else_branch = b () => (float[64] q) { q = Abs(x) }>',
    ),
}


@pytest.mark.parametrize("case", RANDOM_NODES)
def test_random_nodes_draw_the_same_each_time(case: str) -> None:
    opset, draws = RANDOM_NODES[case]
    model = parser.parse_model(f"{HEADER}(float[64] x) => (float[64] y) {{ {draws} }}")
    model.opset_import[0].version = opset
    feeds = {"x": np.ones(64, np.float32)}
    first, second = (run(seeded(model), feeds, machine("cpu")) for _ in range(2))
    np.testing.assert_array_equal(first["y"], second["y"])


def test_nodes_rank_by_outputs_that_say_something() -> None:
    """A sum of centered values is zero but for rounding: off by a hundred times itself, it is not wrong."""
    text = (
        "(float[256, 256] x, float[256, 256] w, float[256, 256] v) => (float[256] zero, float[256, 256] y) { "
        "[axis] a = Constant<value = int64[1] {0}>() [mean] m = ReduceMean<keepdims = 1>(x, a) "
        "[center] c = Sub(x, m) [sum] zero = ReduceSum<keepdims = 0>(c, a) "
        "[dot] p = MatMul(x, w) [add] y = Add(p, v) }"
    )
    optimized, options = planned(text)
    view = optimized.problem.view
    subject = probing._subject(optimized, optimized.imported.model, view, {})
    (batch, *_) = draw_batches(view, ["dot"], options.ranges)
    probed = ProbedBatch(subject, batch.title, batch.feeds)
    assert probed.trial(frozenset({"center"})).errors["zero"] > 100
    assert probed.effect(frozenset({"center"})) < 0.02
