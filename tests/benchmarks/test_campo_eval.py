"""The pieces of the evaluation script that decide what its page says."""

import doctest
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest

from campo_onnx.bench.result import BenchResult, BenchRow, Interval, Outcome
from campo_onnx.devices.datasheet import device
from campo_onnx.errors import ModelError
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.plan import Plan
from campo_onnx.optimize.rewrite import rewrite
from campo_onnx.pipeline import decide, problem_of
from campo_onnx.runtime.providers import machine

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # the benchmarks are no package

import campo_eval  # noqa: E402
from evaluation import converted, measured, node_times, numerics, peers, predicted, tables  # noqa: E402
from evaluation import strategies as labels  # noqa: E402
from evaluation.models import FULL, TITLES, variant_for  # noqa: E402
from evaluation.node_times import NodeTime  # noqa: E402
from evaluation.steps import Deadline, LimitReachedError, Records, Step, run_steps  # noqa: E402

STEP = ROOT / "benchmarks" / "data" / "mlp_step.onnx"
DATA = ROOT / "tests" / "data"
PARAMETERS = [(i, kind) for i in (1, 2, 3) for kind in ("weight", "bias")]
V100 = device("v100")
NEVER = Deadline.after(3600)


def quiet(line: str) -> None:
    pass


def mixed(tmp_path: Path, strategy: str = "tf-amp") -> tuple[Plan, Path]:
    """A training step as a strategy plans it, written to a file."""
    given = import_model(STEP)
    options = replace(labels.options_for(V100), strategy=strategy)
    plan = decide(problem_of(given, options), given, options)
    assert plan.low_nodes
    path = tmp_path / "mixed.onnx"
    onnx.save(rewrite(given, plan), path)
    return plan, path


class TestSteps:
    def step(self, name: str, done: list[str], **asked: Any) -> Step:
        def work() -> dict[str, Any]:
            done.append(name)
            return {"value": name}

        return Step(name=name, asked=asked, work=work)

    def test_a_finished_step_is_not_repeated(self, tmp_path: Path) -> None:
        done: list[str] = []
        records = Records(folder=tmp_path)
        for _ in range(2):
            assert run_steps([self.step("a", done, labels=("x",))], records, NEVER, quiet)
        assert done == ["a"]
        assert records.result("a") == {"value": "a"}

    def test_what_was_found_for_something_else_is_found_anew(self, tmp_path: Path) -> None:
        done: list[str] = []
        for steps in (5, 6):
            run_steps([self.step("a", done, steps=steps)], Records(folder=tmp_path), NEVER, quiet)
        assert done == ["a", "a"]

    def test_later_steps_see_what_earlier_ones_found(self, tmp_path: Path) -> None:
        records, done = Records(folder=tmp_path), list[str]()

        def steps() -> Iterator[Step]:
            yield self.step("a", done)
            found = records.result("a")
            assert found is not None
            yield self.step(f"after-{found['value']}", done)

        assert run_steps(steps(), records, NEVER, quiet)
        assert done == ["a", "after-a"]

    def test_the_time_limit_ends_a_call_and_leaves_no_record(self, tmp_path: Path) -> None:
        def work() -> dict[str, Any]:
            raise LimitReachedError

        done: list[str] = []
        steps = [self.step("a", done), Step(name="b", asked={}, work=work), self.step("c", done)]
        assert not run_steps(steps, Records(folder=tmp_path), NEVER, quiet)
        assert set(Records(folder=tmp_path).all("")) == {"a"}

    def test_no_step_is_begun_after_the_deadline(self, tmp_path: Path) -> None:
        done: list[str] = []
        assert not run_steps([self.step("a", done)], Records(folder=tmp_path), Deadline.after(-1), quiet)
        assert not done

    def test_a_failure_is_on_record_and_the_others_go_on(self, tmp_path: Path) -> None:
        def work() -> dict[str, Any]:
            raise ModelError("the graph is broken")

        done: list[str] = []
        records = Records(folder=tmp_path)
        assert run_steps([Step(name="a", asked={}, work=work), self.step("b", done)], records, NEVER, quiet)
        assert records.all("a")["a"]["failure"] == "the graph is broken."
        assert records.result("a") is None
        assert done == ["b"]


class TestPeers:
    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("Traceback:\n  File x\nKeyError: 'y'\nsee the log\n", "KeyError: 'y'"),
            ("note\nERROR: no matching distribution\nhint\n", "ERROR: no matching distribution"),
            ("onnx.checker.ValidationError: bad\n", "onnx.checker.ValidationError: bad"),
            ("", "it ended without a word"),
        ],
    )
    def test_the_line_that_says_what_went_wrong(self, text: str, line: str) -> None:
        assert peers.first_line(text) == line

    def test_a_peer_that_is_not_there_is_a_failure_not_an_error(self, tmp_path: Path) -> None:
        outcome = peers.convert(peers.PEERS["ort-float16"], STEP, tmp_path / "out.onnx", tmp_path)
        assert "No such file" in outcome.failure

    def test_a_peer_that_runs_the_graph_is_not_given_one_beyond_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(peers, "_memory_bytes", lambda: 1000)
        outcome = peers.convert(peers.PEERS["autocast"], STEP, tmp_path / "out.onnx", tmp_path)
        assert outcome.failure.startswith("not tried")

    def test_versions_are_pinned(self) -> None:
        assert all("==" in name for peer in peers.PEERS.values() for name in peer.requirements)


class TestJudge:
    def test_a_graph_of_ours_is_a_valid_step(self, tmp_path: Path) -> None:
        plan, path = mixed(tmp_path)
        found = converted.judge(STEP, path, ["v100"])
        assert (found.invalid, found.refused, found.unreadable) == ("", "", "")
        assert found.interface_kept
        assert (found.low_loss_nodes, found.low_update_nodes) == (0, 0)
        assert found.loss_nodes
        assert found.update_nodes
        assert found.low_nodes == len(plan.low_nodes)
        assert found.casts == len(plan.casts)
        assert found.predicted_us["v100"] == pytest.approx(plan.predicted_us)
        assert found.fp32_us["v100"] == pytest.approx(plan.fp32_us)

    def test_an_update_in_fp16_is_found(self, tmp_path: Path) -> None:
        model = onnx.load(STEP)
        update = next(n for n in model.graph.node if n.op_type == "Sub" and "update" in n.name)
        lower(model, update)
        path = tmp_path / "low.onnx"
        onnx.save(model, path)
        found = converted.judge(STEP, path, [])
        assert (found.low_update_nodes, found.low_nodes, found.casts) == (1, 1, 3)

    def test_an_unsorted_graph_is_invalid_and_a_changed_interface_is_seen(self, tmp_path: Path) -> None:
        model = onnx.load(STEP)
        nodes = [*model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(reversed(nodes))
        model.graph.input[0].name = "renamed"
        for node in model.graph.node:
            node.input[:] = ["renamed" if name == "param.fc1.weight" else name for name in node.input]
        path = tmp_path / "unsorted.onnx"
        onnx.save(model, path)
        found = converted.judge(STEP, path, [])
        assert "topologically sorted" in found.invalid
        assert not found.interface_kept

    def test_types_that_contradict_each_other_are_judged_all_the_same(self, tmp_path: Path) -> None:
        model = onnx.load(STEP)
        product = next(node for node in model.graph.node if node.op_type in ("MatMul", "Gemm"))
        cast = onnx.helper.make_node(
            "Cast", [product.input[0]], ["half"], "half", to=onnx.TensorProto.FLOAT16
        )
        product.input[0] = "half"
        model.graph.node.insert(0, cast)
        path = tmp_path / "contradiction.onnx"
        onnx.save(model, path)
        found = converted.judge(STEP, path, ["v100"])
        assert found.invalid
        assert found.refused
        assert found.unreadable
        assert found.predicted_us == {}
        assert found.low_nodes


def lower(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Put one node with two inputs into FP16, with a Cast at each of its tensors."""
    at = [other.name for other in model.graph.node].index(node.name)
    half, full = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    casts = [onnx.helper.make_node("Cast", [t], [f"{t}_low"], f"low {t}", to=half) for t in node.input]
    result = onnx.helper.make_node("Cast", ["low result"], [node.output[0]], "back", to=full)
    node.input[:] = [f"{t}_low" for t in node.input]
    node.output[0] = "low result"
    model.graph.node.insert(at + 1, result)
    for cast in casts:
        model.graph.node.insert(at, cast)


class TestUpdateError:
    def test_the_graph_itself_has_none(self) -> None:
        given = import_model(STEP)
        found = numerics.update_error(given, given.model)
        assert (found.median, found.worst, found.not_finite, found.parameters) == (0.0, 0.0, 0, 6)

    def test_an_update_in_fp16_shows(self) -> None:
        given, model = import_model(STEP), onnx.load(STEP)
        for node in [
            n for n in model.graph.node if n.op_type == "Sub" and n.name.startswith("fc1.weight/update")
        ]:
            lower(model, node)
        found = numerics.update_error(given, model)
        assert found.median == 0.0
        assert found.worst > 1e-3

    def test_the_loss_scale_comes_down_until_gradients_are_finite(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given = import_model(STEP)
        scales = []

        def run_at(model: onnx.ModelProto, feeds: dict[str, Any], here: object) -> dict[str, Any]:
            scales.append(float(feeds["loss_scale"]))
            updated = {f"new.fc{i}.{kind}": feeds[f"param.fc{i}.{kind}"] + 1 for i, kind in PARAMETERS}
            return updated | {"grads_finite": scales[-1] <= 32}

        monkeypatch.setattr(numerics, "run", run_at)
        assert numerics.update_error(given, given.model).scale == 32
        assert scales == [1.0, 2.0**15, 2.0**10, 2.0**5]


class TestPredicted:
    def test_what_a_strategy_misses_is_counted_against_optimal(self) -> None:
        rows = predicted.predict(DATA / "bert2_mlm_sdpa.onnx", "v100", ["fp32", "optimal"])
        assert list(rows) == ["fp32", "optimal"]
        assert rows["optimal"].low_nodes
        assert not rows["optimal"].missed_us
        assert sum(rows["fp32"].missed_us.values()) > rows["fp32"].step_us - rows["optimal"].step_us

    def test_rows(self) -> None:
        rows = predicted.predict(STEP, "v100", list(labels.STRATEGIES))
        assert list(rows) == list(labels.STRATEGIES)
        assert rows["fp32"].speedup == 1.0
        assert rows["fp32"].casts == 0
        assert all(
            row.step_us >= rows["optimal"].step_us - 1e-6 for name, row in rows.items() if name != "fp32"
        )
        assert all(row.unpadded_us == row.step_us for name, row in rows.items() if name not in labels.PADDING)

    def test_the_papers_batch_sizes_go_with_its_devices(self) -> None:
        assert variant_for("rtx2080ti") != variant_for("v100") == variant_for("h200") == FULL


class TestMeasured:
    @pytest.mark.parametrize(
        ("size", "groups"),
        [
            (0, (("fp32", "tf-amp tf115", "a", "b", "c"),)),
            (4, (("fp32", "tf-amp tf115", "a", "b"), ("fp32", "tf-amp tf115", "c"))),
        ],
    )
    def test_every_group_has_what_speedups_refer_to(self, size: int, groups: object) -> None:
        assert measured.groups(["fp32", "tf-amp tf115", "a", "b", "c"], size) == groups

    def test_equal_plans_share_a_graph(self) -> None:
        found = measured.entrants(STEP, V100, ["tf-amp tf115", "tf-amp tf2"])
        assert [entrant.labels for entrant in found] == [("fp32",), ("tf-amp tf115", "tf-amp tf2")]
        assert found[0].casts == 0
        assert found[1].casts

    def test_throughput_over_tf_amp_is_paired_by_round(self, monkeypatch: pytest.MonkeyPatch) -> None:
        samples_us = {
            "fp32": tuple(400.0 * load for load in range(1, 11)),
            "tf-amp tf115": tuple(200.0 * load for load in range(1, 11)),
            "campo": tuple(100.0 * load for load in range(1, 11)),
        }
        rows = tuple(
            BenchRow(
                name=name, step_us=Interval(median=1, low=1, high=1), speedup=None, verdict=Outcome.FASTER
            )
            for name in samples_us
        )
        result = BenchResult(
            machine=machine("cpu"),
            rows=rows,
            steps=10,
            measured_at="2026-01-01",
            samples_us=samples_us,
            tolerance=0.01,
        )
        monkeypatch.setattr(measured, "bench", lambda *args, **kwargs: result)
        given = import_model(STEP)
        members = [
            measured.Entrant(labels=names, imported=given, casts=7)
            for names in (("fp32",), ("tf-amp tf115", "tf-amp tf2"), ("campo",))
        ]
        effort = measured.Effort(steps=10, budget_s=1.0)
        found = measured.measure(members, machine("cpu"), effort, 8, NEVER)
        assert found["rows"]["campo"]["over_tf_amp"] == {"median": 2.0, "low": 2.0, "high": 2.0}
        assert found["rows"]["tf-amp tf2"] == found["rows"]["tf-amp tf115"]
        assert found["rows"]["fp32"]["casts"] == 7


def node_time(op: str = "MatMul", **changes: Any) -> NodeTime:
    usual: dict[str, Any] = {"count": 1, "fp32_us": 10.0, "low_us": 5.0}
    usual |= {"predicted_fp32_us": 10.0, "predicted_low_us": 5.0}
    return NodeTime(op=op, **(usual | changes))


class TestNodeTimes:
    def test_m_a_by_operator(self) -> None:
        times = (node_time(predicted_fp32_us=9.0), node_time(predicted_fp32_us=12.0), node_time("Conv"))
        found = {score.op: score for score in node_times.scores(times)}
        assert found["MatMul"].fp32 == pytest.approx(1 - (0.1 + 0.2) / 2)
        assert found["MatMul"].low == 1.0
        assert found["Conv"].nodes == 1

    def test_mispredictions_count_nodes(self) -> None:
        wrong = node_time(count=3, low_us=11.0)
        missed = node_time(count=2, predicted_low_us=20.0)
        found = node_times.mispredictions([node_time(), wrong, missed, node_time("Cast", low_us=None)])
        assert (found.predicted_faster, found.really_faster) == (4, 1)
        assert (found.predicted_slower, found.really_slower) == (2, 0)


def test_the_command_line_knows_every_model_and_strategy() -> None:
    options = campo_eval.arguments().parse_args(["--no-peers", "--models", "vgg16"])
    assert not options.peers
    assert options.strategies == list(labels.STRATEGIES)
    assert set(options.models) <= set(TITLES)


@pytest.mark.parametrize("module", [measured, tables])
def test_examples(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0
