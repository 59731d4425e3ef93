"""Which products are padded: exactly those whose kernels gain more than their pads cost, shared or not."""

import itertools
import json
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from campo_onnx.errors import UsageError
from campo_onnx.hardware.datasheet import devices
from campo_onnx.ir.importer import import_model
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.padding import choose as tensor_cores
from campo_onnx.optimize.padding.choose import PadLimits, pad, with_padding
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.plan.rewrite import rewrite
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.optimize.strategies.optimal import optimal
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import decide, optimize, problem_of
from campo_onnx.targets.target import target

V100 = target("v100")

# Two classifiers of odd size: BERT's vocabulary and the classes of ImageNet.
CLASSIFIERS = """g (float[512,768] h, float[768,30522] w, float[64,2048] f, float[2048,1001] v)
    => (float[512,30522] y, float[64,1001] z) {
    [vocabulary] y = MatMul(h, w)
    [classes] z = MatMul(f, v)
}"""


def on(planned_for, **changes):
    return Options(**{"target": planned_for, "lists": preset("campo")} | changes)


def padded_nodes(plan):
    return {pad.node for pad in plan.pads}


def variant(name="v100", *, unaligned=None, **changes):
    named = target(name)
    own = {key: changes.pop(key) for key in ("launch_us", "host_us") if key in changes}
    hardware = replace(named.hardware, **changes)
    if unaligned is not None:
        hardware = replace(hardware, efficiency=replace(hardware.efficiency, unaligned=unaligned))
    return replace(named, hardware=hardware, **own)


# --- exactly where costs say ---


@pytest.mark.parametrize(
    ("planned_for", "expected"),
    [
        pytest.param(variant(), {"vocabulary", "classes"}, id="both pay on a V100"),
        pytest.param(variant(launch_us=25.0), {"vocabulary"}, id="slow launches: two eat what classes gain"),
        pytest.param(variant(memory_bandwidth_bytes_per_s=2e10), set(), id="slow memory: copies eat all"),
        pytest.param(variant(unaligned=1.0), set(), id="tensor cores that take any size"),
        pytest.param(
            variant("h200"), set(), id="tensor cores that take odd sizes at half speed, which copies exceed"
        ),
        pytest.param(
            variant("h200", unaligned=0.0), {"vocabulary", "classes"}, id="the same, refusing odd sizes"
        ),
        pytest.param(target("cpu"), set(), id="no tensor cores"),
    ],
)
def test_the_plan_pads_where_costs_say(lower, planned_for, expected):
    lowered = lower(CLASSIFIERS)
    problem = problem_of(lowered.imported, on(planned_for))
    plan = pad(problem, lowered.plan, planned_for)
    assert padded_nodes(plan) == expected
    if not expected:
        assert plan is lowered.plan


def test_the_figures_by_hand(lower):
    lowered = lower(CLASSIFIERS, ["vocabulary"])
    plan = pad(problem_of(lowered.imported, on(V100)), lowered.plan, V100)
    (vocabulary,) = plan.pads
    bytes_per_us = V100.hardware.memory_bandwidth_bytes_per_s * 0.8 / 1e6
    before_us = 2 * 512 * 768 * 30522 / (15.7e12 * 0.8) * 1e6
    after_us = 2 * 512 * 768 * 30528 / (125e12 * 0.6) * 1e6
    assert vocabulary.gain_us == pytest.approx(before_us - after_us)
    pad_us = 2 * 768 * (30522 + 30528) / bytes_per_us + 5
    slice_us = 2 * 2 * 512 * 30522 / bytes_per_us + 5
    assert vocabulary.pads_us == pytest.approx(pad_us + slice_us)
    assert plan.pads_us == vocabulary.pads_us
    assert plan.predicted_us == pytest.approx(
        lowered.plan.predicted_us - before_us + after_us + pad_us + slice_us
    )
    assert [(p.tensor, p.position, p.ends, p.by) for p in vocabulary.inputs] == [("w", 1, (0, 6), "pad")]
    assert (vocabulary.output.ends, vocabulary.output.by) == ((0, 6), "slice")


def test_measured_costs_are_shortened_by_the_same_factor(lower):
    lowered = lower(CLASSIFIERS, ["vocabulary"])
    problem = problem_of(lowered.imported, on(V100))
    slower = replace(problem.costs.nodes["vocabulary"], low_us=2 * problem.costs.nodes["vocabulary"].low_us)
    measured = replace(
        problem, costs=replace(problem.costs, nodes={**problem.costs.nodes, "vocabulary": slower})
    )
    gains_us = [pad(p, lowered.plan, V100).pads[0].gain_us for p in (problem, measured)]
    assert gains_us[1] == pytest.approx(2 * gains_us[0])


@pytest.mark.parametrize(("threshold_us", "expected"), [(20, 2), (30, 1), (1350, 1), (1400, 0)])
def test_the_threshold_is_what_padding_must_gain_beyond_its_cost(lower, threshold_us, expected):
    lowered = lower(CLASSIFIERS)
    plan = pad(
        problem_of(lowered.imported, on(V100)), lowered.plan, V100, PadLimits(threshold_us=threshold_us)
    )
    assert len(plan.pads) == expected
    for padded in plan.pads:
        assert padded.gain_us - padded.pads_us > threshold_us


def test_bf16_is_not_padded_because_pad_has_no_kernel(lower):
    lowered = lower(CLASSIFIERS, None, Precision.BF16)
    planned_for = variant("h200", bf16_tensor_flops_per_s=5e13)
    problem = problem_of(lowered.imported, on(planned_for, low=Precision.BF16))
    assert pad(problem, lowered.plan, planned_for) is lowered.plan


# --- sharing ---

BACKWARD = """g (float[512,768] h, float[512,30522] d, float[30522,768] w)
    => (float[512,768] dh, float[30522,768] dw) {
    [dh] dh = MatMul(d, w)
    [dw] dw = Gemm<transA = 1>(d, h)
}"""


def test_a_shared_pad_counts_once(lower):
    lowered = lower(BACKWARD)
    plan = pad(problem_of(lowered.imported, on(V100)), lowered.plan, V100)
    first, second = plan.pads
    assert (first.inputs[0].tensor, first.inputs[0].ends) == ("d", (0, 6))
    assert (second.inputs[0].tensor, second.inputs[0].ends) == ("d", (0, 6))
    alone = pad(problem_of(lowered.imported, on(V100)), lower(BACKWARD, ["dw"]).plan, V100).pads[0]
    pad_us = 2 * 512 * (30522 + 30528) / 720e3 + 5
    assert alone.pads_us - second.pads_us == pytest.approx(pad_us)


def test_two_that_would_not_pay_alone_pay_together(lower):
    # Each alone: gains 52.3 us for two copies; together the tensor between them is not copied at all.
    graph = """g (float[1024,1024] x, float[1024,257] w, float[257,1024] v) => (float[1024,1024] y) {
        [up] h = MatMul(x, w)
        [down] y = MatMul(h, v)
    }"""
    lowered = lower(graph)
    slow = variant(launch_us=18.0)
    problem = problem_of(lowered.imported, on(slow))
    for name in ("up", "down"):
        assert pad(problem, lower(graph, [name]).plan, slow).pads == ()
    plan = pad(problem, lowered.plan, slow)
    assert padded_nodes(plan) == {"up", "down"}
    assert plan.pads[0].output.by == "chain"
    assert plan.pads[1].inputs[0].by == "chain"
    assert plan.predicted_us < lowered.plan.predicted_us


@st.composite
def product_graphs(draw):
    """Draw products of matrices that share tensors, of two odd sizes, with readers that are none."""
    sizes = {"a": 29, "b": 37}
    tensors = {name: (draw(st.sampled_from("ab")), draw(st.sampled_from("ab"))) for name in ("x", "z", "w")}
    inputs = ", ".join(f"float[{sizes[r]},{sizes[c]}] {t}" for t, (r, c) in tensors.items())
    lines = []
    for i in range(draw(st.integers(1, 6))):
        pairs = [(a, b) for a, b in itertools.product(tensors, repeat=2) if tensors[a][1] == tensors[b][0]]
        name, source = f"t{i}", draw(st.sampled_from(list(tensors)))
        if pairs and draw(st.integers(0, 3)):
            left, right = draw(st.sampled_from(pairs))
            lines.append(f"[n{i}] {name} = MatMul({left}, {right})")
            tensors[name] = (tensors[left][0], tensors[right][1])
        else:
            lines.append(f"[n{i}] {name} = Relu({source})")
            tensors[name] = tensors[source]
    last = name
    output = f"float[{sizes[tensors[last][0]]},{sizes[tensors[last][1]]}] {last}"
    return f"g ({inputs}) => ({output}) {{ {' '.join(lines)} }}"


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    graph=product_graphs(),
    launch_us=st.sampled_from([1e-3, 0.05, 0.2, 0.5, 1.0]),
    threshold_us=st.sampled_from([0.0, 0.1]),
)
def test_no_other_choice_gains_more(lower, graph, launch_us, threshold_us):
    planned_for = variant(launch_us=launch_us, memory_bandwidth_bytes_per_s=2e10, sm_count=2)
    lowered = lower(graph)
    problem = problem_of(lowered.imported, on(planned_for))
    candidates = tensor_cores._candidates(problem, lowered.plan.low_nodes, planned_for, PadLimits())
    links = tensor_cores._Links(problem, candidates)

    def worth_us(pads):
        return sum(p.gain_us - p.pads_us - threshold_us for p in pads)

    names = [candidate.node.name for candidate in candidates]
    choices = itertools.chain.from_iterable(itertools.combinations(names, n) for n in range(len(names) + 1))
    most_us = max(worth_us(tensor_cores._planned_pads(links, frozenset(chosen))) for chosen in choices)
    plan = pad(problem, lowered.plan, planned_for, PadLimits(threshold_us=threshold_us))
    assert worth_us(plan.pads) == pytest.approx(most_us, abs=1e-5)
    assert plan.predicted_us <= lowered.plan.predicted_us


# --- together with precision ---


def test_a_product_that_pays_only_when_padded_goes_low():
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {CLASSIFIERS}')
    assert not optimize(model, on(V100, pads=False)).plan.low_nodes
    plan = optimize(model, on(V100)).plan
    assert plan.low_nodes == padded_nodes(plan) == {"vocabulary"}
    assert plan.predicted_us < plan.fp32_us
    assert plan.lower_bound_us == pytest.approx(plan.predicted_us, rel=1e-9)


@pytest.mark.parametrize("name", ["v100", "h200"])
@pytest.mark.parametrize("graph", ["alexnet_like", "bert2_mlm_sdpa", "mlp", "resblocks"])
def test_the_bound_is_tight_and_nothing_is_faster(imported_data, name, graph):
    imported = imported_data(Path(__file__).parents[2] / "data" / f"{graph}.onnx")
    options = on(target(name), min_gain=0.0)
    problem = problem_of(imported, options)
    plan = decide(problem, imported, options)
    assert plan.lower_bound_us == pytest.approx(plan.predicted_us, rel=1e-9)
    for other in ("campo", "tf-amp", "fine-grained"):
        other_us = decide(problem, imported, replace(options, strategy=other)).predicted_us
        assert plan.predicted_us <= other_us * (1 + 1e-9)


def test_precision_and_padding_are_the_best_of_all_choices(lower):
    lowered = lower(BACKWARD, [])
    problem = with_padding(problem_of(lowered.imported, on(V100)), V100)
    answer = optimal(problem)
    padding, names = problem.padding, sorted(problem.padding.gains_us)
    assert len(names) == 2
    found_us = []
    for low, padded in itertools.product(subsets(names), subsets(names)):
        if padded <= low:
            pads_us = sum(
                pad.pad_us
                for pad in padding.pads
                if padded & {*pad.if_padded}
                and (pad.if_unpadded is None or not padded.issuperset(pad.if_unpadded))
            )
            gains_us = sum(padding.gains_us[node] for node in padded)
            found_us.append(problem.predicted_us(low) - gains_us + pads_us)
    assert answer.lower_bound_us == pytest.approx(min(found_us), rel=1e-9)


def subsets(names):
    return [frozenset(some) for n in range(len(names) + 1) for some in itertools.combinations(names, n)]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_only_strategies_that_decide_by_costs_pad(model_text, strategy):
    model = model_text(CLASSIFIERS)
    plan = optimize(model, on(V100, strategy=strategy, margin_us=0.0)).plan
    assert bool(plan.pads) == (strategy in ("optimal", "campo"))
    assert optimize(model, on(V100, strategy=strategy, pads=False)).plan.pads == ()


@pytest.mark.parametrize("strategy", ["optimal", "campo"])
@pytest.mark.parametrize("name", sorted(devices()))
@pytest.mark.parametrize("graph", [CLASSIFIERS, BACKWARD], ids=["classifiers", "backward"])
@pytest.mark.parametrize("threshold_us", [0.0, 100.0])
def test_padding_never_makes_the_prediction_worse(model_text, strategy, name, graph, threshold_us):
    options = on(target(name), strategy=strategy, pad_threshold_us=threshold_us)
    model = model_text(graph)
    plan, without = (optimize(model, replace(options, pads=pads)).plan for pads in (True, False))
    assert plan.predicted_us <= plan.fp32_us + 1e-6
    assert plan.predicted_us <= without.predicted_us + 1e-6


def test_a_strategy_sees_no_more_than_padding_keeps(lower):
    lowered = lower(BACKWARD)
    problem = problem_of(lowered.imported, on(V100))
    seen_us = with_padding(problem, V100).with_pads_in_costs.predicted_us(lowered.plan.low_nodes)
    plan = pad(
        problem, replace(lowered.plan, predicted_us=problem.predicted_us(lowered.plan.low_nodes)), V100
    )
    assert plan.predicted_us < seen_us < problem.predicted_us(lowered.plan.low_nodes)


# --- the plan ---


def test_pads_survive_json(lower):
    lowered = lower(BACKWARD)
    plan = pad(problem_of(lowered.imported, on(V100)), lowered.plan, V100)
    assert plan.pads
    assert Plan.from_json(plan.to_json()) == plan
    assert sum('"gain_us"' in line and '"inputs"' in line for line in plan.to_json().splitlines()) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda pad: pad.pop("inputs"),
        lambda pad: pad.update(surplus=1),
        lambda pad: pad["inputs"][0].pop("ends"),
        lambda pad: pad.update(output=3),
    ],
)
def test_damaged_pads_are_refused(lower, damage):
    lowered = lower(BACKWARD)
    document = json.loads(pad(problem_of(lowered.imported, on(V100)), lowered.plan, V100).to_json())
    damage(document["pads"][0])
    with pytest.raises(UsageError, match="cannot be read"):
        Plan.from_json(json.dumps(document))


def test_a_plan_from_a_file_is_carried_out_alike(model_text):
    model = model_text(CLASSIFIERS)
    optimized = optimize(model, on(V100))
    read_back = Plan.from_json(optimized.plan.to_json())
    assert rewrite(import_model(model), read_back) == optimized.model


def test_the_command_line_says_what_was_padded(model_text, monkeypatch, tmp_path, capsys):
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    onnx.save(model_text(CLASSIFIERS), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)

    def call(*words):
        common = ("m.onnx", "-o", "out.onnx", "--force", "--device", "v100", "--costs", "datasheet")
        monkeypatch.setattr("sys.argv", ["campo-onnx", "optimize", *common, *words])
        with pytest.raises(SystemExit) as left:
            script.load()()
        assert not left.value.code
        return capsys.readouterr().out

    assert "1 nodes for tensor cores" in call()
    assert "Pad" in {node.op_type for node in onnx.load("out.onnx").graph.node}
    for words in (["--no-pads"], ["--pad-threshold-us", "5000"]):
        assert "for tensor cores" not in call(*words)
        assert "Pad" not in {node.op_type for node in onnx.load("out.onnx").graph.node}
