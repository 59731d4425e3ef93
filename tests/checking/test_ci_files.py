"""Parts that others' CI runs: the action and its script, the pre-commit hook, the guide's policy."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

from campo_onnx.checking.batch import check_all
from campo_onnx.checking.policy import load_policy
from campo_onnx.ir.exporter import export_model
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.targets.target import target

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "scripts" / "ci_check.sh"
POLICY = '[[graph]]\nname = "step"\nmixed = "mixed.onnx"\nagainst = "step.onnx"\nbaseline = "plan.json"\n'


def read_yaml(name):
    import yaml

    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.fixture
def environment(step, tmp_path):
    """Variables that GitHub's runner sets, with the program of this environment first on the path."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "CHECK_"))}
    return kept | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_ACTIONS": "true",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }


def run_script(step, environment, **inputs):
    variables = {f"CHECK_{name.upper()}": value for name, value in inputs.items()}
    return subprocess.run(
        ["bash", str(SCRIPT)],
        cwd=step.folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


# --- the action's script ---


def test_the_script_passes_a_sound_policy_and_reports(step, environment, tmp_path):
    (step.folder / "campo.toml").write_text(POLICY)
    done = run_script(step, environment, junit="report.xml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "mixed.onnx against" in done.stdout
    assert (tmp_path / "output").read_text() == "exit-code=0\n"
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("```") == 2
    assert "predicted" in summary
    assert ElementTree.parse(step.folder / "report.xml").getroot().get("tests") == "9"


def test_the_script_fails_with_the_check_and_annotates(step, environment, tmp_path):
    (step.folder / "campo.toml").write_text(POLICY + "max_casts = 0\n")
    done = run_script(step, environment)
    assert done.returncode == 9
    assert "::error file=mixed.onnx,title=campo-onnx casts failed::6 casts were inserted" in done.stdout
    assert "a check failed: step: casts" in done.stderr
    assert (tmp_path / "output").read_text() == "exit-code=9\n"
    assert "::error" not in (tmp_path / "summary.md").read_text()


def test_the_script_takes_one_graph_and_further_options(step, environment):
    folder = step.folder / "with blank"
    folder.mkdir()
    mixed = step.mixed.rename(folder / "mixed.onnx")
    inputs = {"mixed": str(mixed), "against": "step.onnx", "baseline": "plan.json"}
    done = run_script(step, environment, **inputs, args="--max-drift\n1e-9\n")
    assert done.returncode == 9
    assert done.stderr == f"error: a check failed: {mixed}: drift.\n"
    assert run_script(step, environment, mixed="mixed.onnx").returncode == 2


# --- the action ---


def test_the_action_runs_its_check_step_as_github_does(step, environment, tmp_path):
    (step.folder / "limits.toml").write_text(POLICY + "min_speedup = 99\n")
    action = read_yaml("action.yml")
    inputs = {name: entry["default"] for name, entry in action["inputs"].items()} | {"policy": "limits.toml"}
    steps = action["runs"]["steps"]
    assert action["runs"]["using"] == "composite"
    assert all(step["shell"] == "bash" for step in steps if "run" in step)
    (last,) = (s for s in steps if s.get("id") == "check")
    used = {name: re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", v)[1] for name, v in last["env"].items()}
    assert "${{" not in last["run"], "an input pasted into a script could run as one"
    variables = {name: inputs[key] for name, key in used.items()}
    (tmp_path / "runner" / "campo-onnx").mkdir(parents=True)
    (tmp_path / "runner" / "campo-onnx" / "bin").symlink_to(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", last["run"]],
        cwd=step.folder,
        env=environment
        | variables
        | {"GITHUB_ACTION_PATH": str(ROOT), "RUNNER_TEMP": str(tmp_path / "runner")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 9
    assert "title=campo-onnx gain failed" in done.stdout
    assert set(used.values()) | {"python-version"} == set(action["inputs"])
    read = set(re.findall(r"CHECK_\w+", SCRIPT.read_text()))
    assert read == set(last["env"])
    (output,) = action["outputs"].values()
    assert output["value"] == "${{ steps.check.outputs.exit-code }}"


def test_the_action_installs_from_its_own_folder():
    (install,) = (s for s in read_yaml("action.yml")["runs"]["steps"] if "Install" in s.get("name", ""))
    assert 'pip install --quiet --no-deps "$GITHUB_ACTION_PATH"' in install["run"]
    assert '--requirement "$GITHUB_ACTION_PATH/requirements-slim.txt" onnxruntime' in install["run"]
    subprocess.run(["bash", "-n", "-c", install["run"]], check=True)


# --- the pre-commit hook ---


def test_the_hook_runs_what_it_says(step, environment):
    (hook,) = read_yaml(".pre-commit-hooks.yaml")
    assert (hook["id"], hook["language"], hook["pass_filenames"]) == ("campo-onnx-check", "python", False)
    words = [*shlex.split(hook["entry"]), *hook["args"]]
    assert words[0] in {script.name for script in entry_points(group="console_scripts")}
    (step.folder / "campo.toml").write_text(POLICY)

    step.mixed.write_bytes(b"torn")
    done = subprocess.run(
        words, cwd=step.folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 9
    assert "step: valid" in done.stderr


@pytest.mark.parametrize(
    ("file", "starts"),
    [("g/mixed.onnx", True), ("campo.toml", True), ("g/plan.json", True), ("b.npz", True), ("a.py", False)],
)
def test_the_hook_starts_for_what_a_policy_can_name(file, starts):
    (hook,) = read_yaml(".pre-commit-hooks.yaml")
    assert bool(re.search(hook["files"], file)) is starts


# --- the guide ---


def test_the_guide_s_policy_is_read_and_kept(step, model_text, tmp_path):
    """Build the repository that docs/ci.md describes, and check it with the policy printed there."""
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)
    graphs = tmp_path / "graphs"
    graphs.mkdir()
    (graphs / "mlp.onnx").write_bytes(step.fp32.read_bytes())
    (graphs / "mlp_mixed.onnx").write_bytes(step.mixed.read_bytes())
    (graphs / "mlp.plan.json").write_bytes(step.baseline.read_bytes())
    generator = np.random.default_rng(0)
    shapes = {"x": (128, 512), "w": (512, 512), "v": (512, 512)}
    arrays = {name: generator.normal(0, 0.03, shape).astype(np.float32) for name, shape in shapes.items()}
    np.savez(graphs / "batch.npz", **arrays)
    cnn = model_text("g (float[B,4096] x, float[4096,4096] w) => (float[B,4096] y) { y = MatMul(x, w) }")
    onnx.save(cnn, graphs / "cnn.onnx")
    options = Options(target=target("v100"), lists=preset("campo"), dims={"B": 4})
    export_model(optimize(graphs / "cnn.onnx", options).model, graphs / "cnn_mixed.onnx")
    (tmp_path / "campo.toml").write_text(text)
    verdicts = check_all(load_policy(tmp_path / "campo.toml"))
    assert [graph.name for graph in verdicts] == ["mlp", "graphs/cnn_mixed.onnx"]
    assert [graph.error for graph in verdicts] == [None, None]
    assert [graph.failed for graph in verdicts] == [(), ()]


def test_the_guide_names_every_rule_and_key():
    from campo_onnx.checking.policy import _Graph
    from campo_onnx.checking.rules import RULES, VALID

    guide = (ROOT / "docs" / "ci.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE) == [VALID, *(rule.name for rule in RULES)]
    (text,) = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    used = tomllib.loads(text)
    assert set(used["defaults"]).union(*used["graph"]) == {key.name for key in fields(_Graph)}
