"""Pages without a browser: what they say, and that names of strangers stay text."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from campo_onnx.bench.result import BenchResult, BenchRow, Interval, Outcome
from campo_onnx.checking.as_plan import as_plan
from campo_onnx.checking.policy import Pair, Policy
from campo_onnx.checking.verdict import Verdict, Verdicts, failed, not_checked, passed
from campo_onnx.costs.evidence import CostSource
from campo_onnx.errors import UsageError
from campo_onnx.ir.exporter import export_model
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.strategies import STRATEGIES
from campo_onnx.planning.advice import alternatives
from campo_onnx.planning.comparison import compare
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.report import costs, page
from campo_onnx.report.comparison_page import comparison_page
from campo_onnx.report.page import check_report
from campo_onnx.report.plan_page import check_page, family_rows, plan_page, whole_step
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.target import target
from campo_onnx.wording import duration, visible
from tests.report import hostile

LAYER = Path(__file__).parent.parent.parent / "examples" / "bert_layer.onnx"
OPTIONS = Options(target=target("v100"), lists=preset("campo"))


class Read(HTMLParser):
    """A page as a browser's parser sees it: elements, visible text, contents of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self._within = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within = tag
        if tag in ("script", "style"):
            (self.scripts if tag == "script" else self.styles).append("")

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within in ("script", "style"):
            (self.scripts if self._within == "script" else self.styles)[-1] += data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def data(self) -> dict[str, object]:
        return json.loads(self.scripts[0])

    @property
    def policy(self) -> str:
        return next(attrs["content"] for _, attrs in self.tags if "http-equiv" in attrs)


@pytest.fixture(scope="module")
def layer():
    return optimize(LAYER, OPTIONS)


@pytest.fixture(scope="module")
def written(layer):
    return plan_page(layer.plan, layer.problem, (layer.given_traffic, layer.planned_traffic), model="m.onnx")


@pytest.fixture(scope="module")
def attacked():
    optimized = optimize(hostile.model(), OPTIONS)
    return optimized, plan_page(
        optimized.plan,
        optimized.problem,
        (optimized.given_traffic, optimized.planned_traffic),
        model=hostile.NAMES[0],
        notes=[hostile.NAMES[2]],
    )


def test_every_decision_is_in_the_page(layer, written) -> None:
    data, plan = Read(written).data, layer.plan
    (only,) = data["plans"]
    assert data["names"] == [d.node for d in plan.decisions]
    assert [data["reasons"][i] for i in only["reason"]] == [d.reason for d in plan.decisions]
    assert [data["ops"][i] for i in data["op"]] == [d.op_type for d in plan.decisions]
    assert [kind == "L" for kind in only["precision"]] == [d.is_lowered for d in plan.decisions]
    assert data["fp32_us"] == pytest.approx([d.fp32_us for d in plan.decisions], abs=1e-3)
    assert only["gain_us"] == pytest.approx([d.gain_us for d in plan.decisions], abs=1e-3)
    assert len(only["casts"]) == len(plan.casts) + len(plan.reused) + len(plan.dropped)
    assert sum(row[4] for row in only["casts"]) == pytest.approx(plan.cast_us, rel=1e-3)
    sources = {data["sources"][i] for i in data["source"]}
    assert sources == {cost.source.value for cost in layer.problem.costs.nodes.values()}


def test_bytes_and_launches_of_nodes_and_casts_add_up_to_the_step(layer, written) -> None:
    data, before, after = Read(written).data, layer.given_traffic.total, layer.planned_traffic.total
    (only,) = data["plans"]
    assert (sum(data["bytes"]), sum(data["launches"])) == (before.moved_bytes, before.launches)
    assert sum(only["bytes"]) + sum(only["cast_bytes"]) == after.moved_bytes
    assert sum(data["launches"]) + len(layer.plan.casts) == after.launches
    assert sum(only["bytes"]) < before.moved_bytes


def test_a_plan_file_with_an_unknown_source_of_costs_opens(layer) -> None:
    page_text = Read(plan_page(replace(layer.plan, source="later"), model="plan.json")).text
    assert costs.MEANINGS[CostSource.UNKNOWN] in page_text


def test_the_page_of_one_check_shows_the_graph_that_was_checked(layer, tmp_path) -> None:
    mixed, against = tmp_path / "m.onnx", LAYER
    export_model(layer.model, mixed)
    (tmp_path / "plan.json").write_text(layer.plan.to_json())
    policy = Policy(target=target("v100"), baseline=tmp_path / "plan.json")
    optimized = as_plan(Pair(name="m", mixed=mixed, against=against, policy=policy))
    assert optimized.plan.low_nodes == layer.plan.low_nodes
    assert {d.node: d.reason for d in optimized.plan.decisions} == {
        d.node: d.reason for d in layer.plan.decisions
    }
    assert optimized.plan.predicted_us == pytest.approx(layer.plan.predicted_us)
    assert optimized.after.total == layer.planned_traffic.total
    drift = replace(passed("fine", value=0.5, limit=1.0), parts={"grad.w": 0.5, "loss": 0.1})
    checked = Verdicts(
        name="m", mixed="m", against="a", device="v100", costs="datasheet",
        verdicts=(Verdict(rule="drift", finding=drift),),
    )  # fmt: skip
    seen = Read(check_page([checked], optimized))
    assert seen.data["names"] == [d.node for d in layer.plan.decisions]
    for text in ("The graph that was checked", "grad.w 0.5 1", "Every decision", "What stayed FP32"):
        assert text in seen.text
    without = replace(policy, baseline=None)
    alone = as_plan(Pair(name="m", mixed=mixed, against=against, policy=without)).plan
    assert {d.decided_by.value for d in alone.decisions if d.is_lowered} == {"as-written"}
    assert as_plan(Pair(name="m", mixed=tmp_path / "none.onnx", against=against, policy=policy)) is None


def test_families_add_up_to_the_step(layer) -> None:
    moved = layer.given_traffic, layer.planned_traffic
    rows = family_rows(layer.plan, moved)
    assert sum(row.fp32_us for row in rows) == pytest.approx(layer.plan.fp32_us)
    assert sum(row.planned_us for row in rows) == pytest.approx(layer.plan.predicted_us)
    whole = whole_step(layer.plan, rows)
    assert (whole.before, whole.after) == (moved[0].total, moved[1].total)
    assert whole.nodes == len(layer.plan.decisions)


def test_the_page_says_what_was_predicted_and_from_what(layer, written) -> None:
    text, plan = Read(written).text, layer.plan
    assert f"{duration(plan.fp32_us)} → {duration(plan.predicted_us)}" in text
    assert "predicted, from public figures" in text
    assert "nothing was measured" in text
    assert costs.provenance(plan, layer.problem).figures_from in text
    for row in costs.provenance(plan, layer.problem).assumed.values():
        assert row.reason in text


def test_every_source_of_costs_has_a_meaning() -> None:
    assert set(CostSource) - {CostSource.AUTO} == set(costs.MEANINGS)


def test_a_page_is_always_the_same(layer, written) -> None:
    again = plan_page(layer.plan, layer.problem, (layer.given_traffic, layer.planned_traffic), model="m.onnx")
    assert again == written


def test_the_page_loads_nothing(written) -> None:
    read = Read(written)
    addresses = [
        value or ""
        for tag, attrs in read.tags
        for name, value in attrs.items()
        if name in ("src", "srcset", "href", "action", "data", "poster", "background")
    ]
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert any(address.startswith("data:image/svg+xml") for address in addresses)
    assert not re.search(r"url\(|@import", read.styles[0])
    assert "default-src 'none'" in read.policy


def test_only_its_own_script_and_style_may_run(written) -> None:
    read = Read(written)

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    (style,), (_, script) = read.styles, read.scripts
    assert f"script-src 'sha256-{digest(script)}'" in read.policy
    assert f"style-src 'sha256-{digest(style)}'" in read.policy
    assert "unsafe" not in read.policy
    assert not any(name == "style" or name.startswith("on") for _, attrs in read.tags for name in attrs)


def test_names_of_strangers_are_text(attacked, written) -> None:
    optimized, text = attacked
    read = Read(text)
    assert [tag for tag, _ in read.tags].count("script") == 2
    assert {tag for tag, _ in read.tags} <= {tag for tag, _ in Read(written).tags}
    names = [d.node for d in optimized.plan.decisions]
    assert read.data["names"] == [visible(name) for name in names]
    assert all(name.isprintable() for name in read.data["names"])
    assert not re.search("[\u2028\u2029\u202e\0\x1b]", text)
    assert "<" not in read.scripts[0]
    assert visible(hostile.NAMES[0]) in read.text
    assert hostile.NAMES[2] in read.text


def test_other_strategies_and_devices_and_drift_stand_in_the_page(layer) -> None:
    others = [*alternatives(layer, OPTIONS, patience_s=600.0)]
    strategies = {each.strategy for each in others if each.device == "v100"}
    assert strategies == STRATEGIES.keys() - {OPTIONS.strategy}
    assert {each.device for each in others if each.strategy == OPTIONS.strategy} >= {"h200", "a100", "t4"}
    best = min(each.predicted_us for each in others if each.device == "v100")
    assert layer.plan.predicted_us <= best * (1 + 1e-9)
    assert not [*alternatives(layer, OPTIONS, patience_s=0.0)]
    drift = {"grad.<b>": 0.25, "loss": float("inf")}
    page = plan_page(layer.plan, layer.problem, model="m", alternatives=others, drift=drift)
    assert "Other strategies and devices" in page
    assert all(f'<th scope="row">{each.device}</th><td>{each.strategy}</td>' in page for each in others)
    assert "grad.&lt;b&gt;" in page
    assert '<td class="number">0.25</td>' in page
    bare = plan_page(layer.plan, layer.problem, model="m")
    assert "Other strategies and devices" not in bare
    assert "Drift of every output" not in bare


def test_a_plan_file_gives_a_page_too(layer) -> None:
    plan = Plan.from_json(layer.plan.to_json())
    read = Read(plan_page(plan, model="plan.json"))
    assert read.data["names"] == [d.node for d in plan.decisions]
    assert "reads" not in read.data
    assert "bytes and launches are not known here" in read.text


def test_an_unchanged_step_says_so() -> None:
    plan = optimize(LAYER, Options(target=target("v100"), lists=preset("campo"), strategy="fp32")).plan
    read = Read(plan_page(plan, model="m"))
    assert f"unchanged {duration(plan.fp32_us)} → {duration(plan.fp32_us)}, predicted" in read.text
    assert set(read.data["plans"][0]["precision"]) <= {"F", "-"}


def test_measured_steps_are_told_from_predicted_ones(layer) -> None:
    rows = (
        BenchRow(
            name="fp32",
            step_us=Interval(median=9e3, low=8.9e3, high=9.1e3),
            speedup=None,
            verdict=Outcome.BASELINE,
        ),
        BenchRow(
            name="mixed",
            step_us=Interval(median=6e3, low=5.9e3, high=6.1e3),
            speedup=Interval(median=1.5, low=1.471, high=1.532),
            verdict=Outcome.FASTER,
        ),
    )
    measured = BenchResult(
        machine=replace(machine("cpu", 1), runtime="openvino", ort="2026.4.1"),
        rows=rows,
        steps=3,
        measured_at="2026-01-01",
        samples_us={row.name: (row.step_us.low, row.step_us.high) for row in rows},
        tolerance=0.01,
    )
    text = Read(plan_page(layer.plan, model="m", measured=measured)).text
    assert f"Measured on {measured.machine.device}" in text
    assert "Measured steps, OpenVINO 2026.4.1, provider cpu" in text
    assert "mixed 6.00 ms 5.90 ms to 6.10 ms 1.500 1.471 to 1.532 faster" in text
    assert "every time but the measured steps is predicted" in text


def test_what_calibrated_costs_rest_on_is_said(layer) -> None:
    table = replace(layer.problem.costs, basis=("calibrated on a <GPU>, M_A 90 %",))
    text = Read(plan_page(layer.plan, replace(layer.problem, costs=table), model="m")).text
    assert "Measurements calibrated on a <GPU>, M_A 90 %" in text


def test_strategies_stand_side_by_side() -> None:
    comparison = compare(LAYER, OPTIONS)
    read = Read(comparison_page(comparison, model="m.onnx"))
    plans = [row.plan for row in comparison.rows]
    assert [shown["title"] for shown in read.data["plans"]] == [f"{p.strategy} ({p.lists})" for p in plans]
    for plan, shown in zip(plans, read.data["plans"], strict=True):
        assert [kind == "L" for kind in shown["precision"]] == [d.is_lowered for d in plan.decisions]
        assert duration(plan.predicted_us) in read.text
    assert "measured steps" not in read.text


def test_verdicts_of_a_check() -> None:
    rules = (
        Verdict(rule="valid", finding=passed("fine")),
        Verdict(rule="gain", finding=failed("too slow", value=0.5, limit=1.0)),
        Verdict(rule="loads", finding=not_checked("<b>no provider</b>")),
    )
    good = Verdicts(name="good", mixed="m", against="f", verdicts=rules[:1], device="v100", costs="datasheet")
    bad = Verdicts(name=hostile.NAMES[0], mixed="m", against="f", verdicts=rules)
    broken = Verdicts(name="gone", mixed="m", against="f", error=UsageError("there is no file m"))
    read = Read(check_page([good, bad, broken]))
    assert "3 graphs, 4 rules, 2 with something that failed" in read.text
    assert "✗ failed" in read.text
    assert "there is no file m" in read.text
    assert "<b>no provider</b>" in read.text
    assert not read.scripts
    assert "script-src 'none'" in read.policy


@pytest.mark.parametrize("name", ["out", "out.txt", "out.html.gz"])
def test_other_suffixes_are_refused(name) -> None:
    with pytest.raises(UsageError, match=r"End the name with \.html"):
        check_report(Path(name))


def test_what_is_missing_is_named(monkeypatch) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None if name == "jinja2" else name)
    with pytest.raises(UsageError, match=r"needs jinja2.*pip install 'campo-onnx\[report\]'"):
        check_report(Path("out.html"))
