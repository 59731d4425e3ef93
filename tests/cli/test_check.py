"""``campo-onnx check`` from the outside: reports, messages, exit codes, and nothing overwritten."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest

from campo_onnx.ir.exporter import export_model
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.targets.target import target

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests" / "data"
SOUND = ("mixed.onnx", "--against", "mlp.onnx", "--min-speedup", "0")
RULES = ["valid", "loadable", "interface", "fp32", "drift", "plan", "casts", "step", "gain"]
OPTIONS = (
    *("--against", "--policy", "--dim", "--inputs", "--baseline", "--max-drift", "--min-speedup"),
    *("--max-casts", "--keep-fp32", "--strict", "--device", "--lists", "--json", "--junit", "--github"),
)


@pytest.fixture(scope="module")
def graph_folder(tmp_path_factory):
    """The MLP, a mixed version that is slower on a V100 (tf-amp asks no costs), and its plan."""
    folder = tmp_path_factory.mktemp("graphs")
    (folder / "mlp.onnx").write_bytes((DATA / "mlp.onnx").read_bytes())
    options = Options(target=target("v100"), lists=preset("campo"), strategy="tf-amp")
    optimized = optimize(folder / "mlp.onnx", options)
    export_model(optimized.model, folder / "mixed.onnx", folder=folder)
    (folder / "plan.json").write_text(optimized.plan.to_json())
    return folder


@pytest.fixture
def check(program, tmp_path, graph_folder):
    """Run the command in a folder with copies of the files; returns the exit code."""
    for path in graph_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return partial(program, "check")


# --- what it predicts for ---


def test_a_plan_for_a_captured_graph_is_checked_as_one(program, check, capsys):
    """By its own plan, and without one by what the mixed file says."""
    captured = ("--device", "v100", "--strategy", "tf-amp", "--execution", "graph", "--force")
    assert program("optimize", "mlp.onnx", "-o", "mixed.onnx", "--plan", "plan.json", *captured) == 0
    planned = json.loads(Path("plan.json").read_text())
    assert planned["captured"]
    for baseline in (("--baseline", "plan.json"), ()):
        capsys.readouterr()
        assert check(*SOUND, *baseline, "--json") == 0
        (graph,) = json.loads(capsys.readouterr().out)["graphs"]
        (gain,) = [rule for rule in graph["rules"] if rule["rule"] == "gain"]
        assert graph["captured"]
        assert gain["value"] == pytest.approx(planned["fp32_us"] / planned["predicted_us"])
    assert check(*SOUND, "--baseline", "plan.json") == 0
    assert "v100 captured as a CUDA graph (estimate from public figures)" in capsys.readouterr().out


# --- what it prints ---


def test_a_table_for_people(check, capsys):
    assert check(*SOUND, "--baseline", "plan.json") == 0
    printed = capsys.readouterr()
    assert re.search(r"mixed\.onnx against mlp\.onnx.*v100 .estimate from public figures", printed.out)
    assert re.findall(r"^  (\w+) +(?:passed|not asked)", printed.out, re.MULTILINE) == RULES
    assert "failed" not in printed.out
    assert "::" not in printed.out
    assert printed.err == ""


def test_a_broken_rule_is_exit_code_9_and_named(check, capsys):
    assert check("mixed.onnx", "--against", "mlp.onnx") == 9
    printed = capsys.readouterr()
    assert re.search(r"gain +failed +predicted 0\.\d+x on v100", printed.out)
    assert printed.err == "error: a check failed: mixed.onnx: gain.\n"
    assert check(*SOUND, "--max-drift", "1e-9", "--max-casts", "1") == 9
    assert "2 checks failed: mixed.onnx: drift, mixed.onnx: casts." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "broken"),
    [
        (("--max-drift", "1e-9"), "drift"),
        (("--max-casts", "2"), "casts"),
        (("--min-speedup", "3"), "gain"),
        (("--keep-fp32", "Gemm"), "fp32"),
        (("--lists", "own.toml"), "fp32"),
    ],
)
def test_every_limit_reaches_its_rule(check, tmp_path, capsys, words, broken):
    (tmp_path / "own.toml").write_text('extends = "campo"\n[deny]\nops = ["Gemm"]\n')
    assert check(*SOUND, *words, "--json") == 9
    (graph,) = json.loads(capsys.readouterr().out)["graphs"]
    assert [rule["rule"] for rule in graph["rules"] if rule["status"] == "failed"] == [broken]


def test_the_baseline_and_the_batch_are_read(check, tmp_path, capsys):
    import numpy as np

    generator = np.random.default_rng(0)
    arrays = {
        value.name: generator.normal(0, 0.05, [d.dim_value for d in value.type.tensor_type.shape.dim])
        for value in onnx.load("mlp.onnx").graph.input
    }
    arrays = {name: value.astype(np.float32) for name, value in arrays.items()}
    arrays["target0"] = np.zeros(8, np.int64)
    np.savez("batch.npz", **arrays)
    plan = Plan.from_json((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(replace(plan, digest="0").to_json())
    assert check(*SOUND, "--baseline", "plan.json", "--inputs", "batch.npz", "--json") == 9
    (graph,) = json.loads(capsys.readouterr().out)["graphs"]
    rules = {rule["rule"]: rule for rule in graph["rules"]}
    assert rules["plan"]["status"] == "failed"
    assert (rules["drift"]["status"], "batch.npz" in rules["drift"]["reason"]) == ("passed", True)


def test_json_is_the_document_alone(check, capsys):
    assert check(*SOUND, "--json", "--github", "--max-casts", "0") == 9
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["format_version"], document["passed"]) == (1, False)
    assert [rule["rule"] for rule in document["graphs"][0]["rules"]] == RULES
    assert "::error file=mixed.onnx,title=campo-onnx casts failed::" in printed.err


def test_junit_replaces_the_last_report(check, tmp_path, capsys):
    for _ in range(2):
        assert check(*SOUND, "--junit", "report.xml") == 0
    root = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert [case.get("name") for case in root.iter("testcase")] == RULES
    assert (root.get("failures"), root.get("skipped")) == ("0", "3")


@pytest.mark.parametrize("switch", ["--github", "GITHUB_ACTIONS"])
def test_annotations_on_request_and_inside_github_actions(check, monkeypatch, capsys, switch):
    words = ["mixed.onnx", "--against", "mlp.onnx"]
    if switch == "GITHUB_ACTIONS":
        monkeypatch.setenv(switch, "true")
    else:
        words.append(switch)
    assert check(*words) == 9
    annotations = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert len(annotations) == 1
    assert annotations[0].startswith("::error file=mixed.onnx,title=campo-onnx gain failed::predicted 0.")


def test_strict_fails_what_cannot_be_checked(check, capsys):
    model = DATA / "cnn_artifacts_training_model.onnx"
    words = (model, "--against", model, "--dim", "B=4")
    assert check(*words, "--device", "v100") == 0
    assert "not checked" in capsys.readouterr().out
    assert check(*words, "--device", "v100", "--strict") == 9
    assert "loadable" in capsys.readouterr().err


# --- a whole repository ---


def test_a_policy_checks_every_graph(check, tmp_path, capsys):
    (tmp_path / "campo.toml").write_text(
        '[defaults]\nmin_speedup = 0\n[[graph]]\nname = "good"\nmixed = "mixed.onnx"\nagainst = "mlp.onnx"\n'
        '[[graph]]\nname = "slow"\nmixed = "mixed.onnx"\nagainst = "mlp.onnx"\nmin_speedup = 2.0\n'
    )
    assert check("--policy", "campo.toml", "--json", "--junit", "r.xml") == 9
    printed = capsys.readouterr()
    assert [graph["passed"] for graph in json.loads(printed.out)["graphs"]] == [True, False]
    assert "slow: gain" in printed.err
    assert len(ElementTree.parse(tmp_path / "r.xml").getroot()) == 2


def test_an_error_outranks_a_broken_rule_and_hides_none(check, tmp_path, capsys):
    rows = [("slow", "mixed.onnx"), ("stranger", "other.onnx"), ("gone", "gone.onnx")]
    (tmp_path / "other.onnx").write_bytes((ROOT / "examples" / "bert_layer.onnx").read_bytes())
    (tmp_path / "campo.toml").write_text(
        "".join(f'[[graph]]\nname = "{n}"\nmixed = "{m}"\nagainst = "mlp.onnx"\n' for n, m in rows)
    )
    assert check("--policy", "campo.toml", "--junit", "r.xml") == 7
    printed = capsys.readouterr()
    assert "predicted 0." in printed.out
    assert "other.onnx belongs to another model" in printed.out.replace("\n", " ")
    assert "gone.onnx does not exist" in printed.out
    assert "belongs to another model" in printed.err
    root = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert (root.get("failures"), root.get("errors")) == ("1", "2")


# --- bad input ---


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ((), 2, "there is nothing to check. Give MIXED and --against MODEL, or --policy FILE.toml."),
        (("mixed.onnx",), 2, "there is nothing to check"),
        (("--against", "mlp.onnx"), 2, "there is nothing to check"),
        (("mixed.onnx", "--policy", "p.toml"), 2, "MIXED cannot be combined with --policy"),
        (("--policy", "p.toml", "--max-drift", "0"), 2, "--max-drift cannot be combined with --policy"),
        (("--policy", "gone.toml"), 2, "gone.toml does not exist"),
        (("--policy", "p.toml"), 2, "graph[0].max_drfit: unknown field, did you mean 'max_drift'?"),
        (("gone.onnx", "--against", "mlp.onnx"), 2, "gone.onnx does not exist"),
        (("mixed.onnx", "--against", "gone.onnx"), 2, "gone.onnx does not exist"),
        ((*SOUND, "--baseline", "gone.json"), 2, "the baseline gone.json does not exist. Write one with"),
        ((*SOUND, "--baseline", "p.toml"), 2, "the baseline p.toml is not a plan file"),
        ((*SOUND, "--inputs", "gone.npz"), 2, "gone.npz does not exist"),
        ((*SOUND, "--device", "v10"), 2, "unknown device 'v10'"),
        ((*SOUND, "--lists", "camp"), 2, "camp"),
        ((*SOUND, "--keep-fp32", "("), 2, "is not a regular expression"),
        (
            (*SOUND, "--max-drift", "-1"),
            2,
            "max_drift is -1.0. Give a number that is not negative, and below 2^63.",
        ),
        ((*SOUND, "--max-drift", "nan"), 2, "max_drift is nan"),
        ((*SOUND, "--dim", "B=4"), 2, "B"),
        ((*SOUND, "--junit", "mlp.onnx"), 2, "the output mlp.onnx exists"),
        ((*SOUND, "--junit", "no/r.xml"), 2, "the folder no of the output does not exist"),
        (("mixed.onnx", "--against", "mixed.onnx"), 2, "is itself a result of campo-onnx"),
        (("mixed.onnx", "--against", "p.toml"), 3, "p.toml is not an ONNX model"),
        (
            ("mixed.onnx", "--against", "bert.onnx"),
            7,
            "mixed.onnx belongs to another model: 191 of 192 nodes",
        ),
    ],
)
def test_bad_input_is_one_message_and_harms_nothing(check, tmp_path, capsys, words, code, expected):
    (tmp_path / "p.toml").write_text('[[graph]]\nmixed = "m"\nagainst = "f"\nmax_drfit = 1\n')
    (tmp_path / "bert.onnx").write_bytes((ROOT / "examples" / "bert_layer.onnx").read_bytes())
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert check(*words) == code
    printed = capsys.readouterr()
    assert expected in printed.err
    assert len(printed.err.splitlines()) == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_that_is_no_model_is_a_broken_rule(check, tmp_path, capsys):
    (tmp_path / "mixed.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert check(*SOUND) == 9
    assert re.search(r"valid +failed +mixed\.onnx is not an ONNX model", capsys.readouterr().out)


def test_help_mentions_every_option(check, capsys):
    assert check("--help") == 0
    printed = capsys.readouterr().out
    for option in OPTIONS:
        assert option in printed
