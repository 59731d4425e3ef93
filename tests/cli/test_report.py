"""``--report``: where it is written, and what it leaves alone."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory):
    """Filled by the first test that asks for a plan."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def plan(shared_folder, program, tmp_path):
    if any(shared_folder.iterdir()):
        shutil.copytree(shared_folder, tmp_path, dirs_exist_ok=True)
    else:
        words = ("optimize", MLP, "-o", "mixed.onnx", "--device", "v100", "--plan", "plan.json")
        assert program(*words, "--report", "out.html") == 0
        shutil.copytree(tmp_path, shared_folder, dirs_exist_ok=True)
    return tmp_path / "plan.json"


def test_every_command_writes_one(plan, program, tmp_path, capsys) -> None:
    assert program("compare", MLP, "--device", "v100", "--report", "compare.html") == 0
    assert program("explain", plan, "--report", "explain.html") == 0
    assert program("check", "mixed.onnx", "--against", MLP, "--report", "check.html") == 0
    assert "Wrote check.html" in capsys.readouterr().out
    pages = {path.stem: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.html")}
    assert pages.keys() == {"out", "compare", "explain", "check"}
    names = [decision["node"] for decision in json.loads(plan.read_text())["decisions"]]
    for stem in ("out", "compare", "explain"):
        data = pages[stem].partition('id="data">')[2].partition("</script>")[0]
        assert json.loads(data)["names"] == names
    assert "interface" in pages["check"]


@pytest.mark.parametrize(
    "words",
    [
        ("optimize", MLP, "-o", "again.onnx", "--device", "v100"),
        ("compare", MLP, "--device", "v100"),
        ("explain", "plan.json"),
        ("check", "mixed.onnx", "--against", MLP),
    ],
)
def test_bad_places_are_refused_before_any_work(words, plan, program, tmp_path, capsys) -> None:
    os.mkfifo("pipe.html")
    Path("folder.html").mkdir()
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    places = {
        "out.html": "exists",
        "pipe.html": "not a regular file",
        "folder.html": "is a folder",
        "missing/out.html": "does not exist",
        "out.pdf": "End the name with .html",
    }
    for place, why in places.items():
        capsys.readouterr()
        assert program(*words, "--report", place) == 2
        assert why in " ".join(capsys.readouterr().err.split())
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert program(*words, "--report", "out.html", "--force") == 0


def test_two_outputs_of_one_name_are_refused(program, capsys) -> None:
    words = ("optimize", MLP, "-o", "a.onnx", "--device", "v100")
    assert program(*words, "--plan", "x.html", "--report", "x.html") == 2
    assert "--report and --plan are the same file" in capsys.readouterr().err
    assert not list(Path().glob("*.html"))


def test_json_stays_json(plan, program, capsys) -> None:
    capsys.readouterr()
    assert program("explain", plan, "--json", "--report", "new.html") == 0
    json.loads(capsys.readouterr().out)
    assert Path("new.html").exists()


def test_drift_of_every_output_is_in_the_page_of_a_plan_with_batches(program, tmp_path):
    """And the other strategies and devices, with or without batches."""
    model = onnx.load(MLP)
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        is_index = np.issubdtype(dtype, np.integer)
        drawn = rng.integers(0, 2, shape) if is_index else rng.standard_normal(shape)
        feeds[value.name] = drawn.astype(dtype)
    np.savez(tmp_path / "batch.npz", **feeds)
    words = ("optimize", MLP, "-o", "mixed.onnx", "--device", "v100", "--strategy", "tf-amp", "--report")
    assert program(*words, "with.html", "--inputs", "batch.npz") == 0
    assert program(*words, "without.html", "--force") == 0
    shown, bare = ((tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in ("with", "without"))
    drift = shown.partition('id="drift"')[2].partition("</section>")[0]
    assert all(f'<th scope="row">{value.name}</th>' in drift for value in model.graph.output)
    assert 'id="drift"' not in bare
    for page in (shown, bare):
        others = page.partition('id="others"')[2].partition("</section>")[0]
        assert '<th scope="row">v100</th><td>optimal</td>' in others
        assert '<th scope="row">h200</th><td>tf-amp</td>' in others
