"""Commands leave little in a home folder, and on the screen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"
RUN = "from importlib.metadata import entry_points as e; e(name='campo-onnx')['campo-onnx'].load()()"
_SUPPRESSING = ("CI", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "MPLCONFIGDIR")


def at_home(home, *words):
    """Run a command with a home folder of its own, as on a machine where nothing is switched off."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("XDG_") and k not in _SUPPRESSING}
    environment = kept | {"HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", RUN, *map(str, words)],
        cwd=home.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="folders of other systems are elsewhere")
def test_a_fresh_home_stays_empty_but_for_what_is_ours(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    for words in (
        ("devices",),
        ("optimize", MLP, "-o", "mixed.onnx", "--device", "cpu", "--report", "r.html"),
        ("check", "mixed.onnx", "--against", MLP, "--min-speedup", "0"),
        ("bench", MLP, "mixed.onnx", "--device", "cpu", "--steps", "6"),
    ):
        done = at_home(home, *words)
        assert done.returncode == 0, done.stderr
        assert "\x1b[" not in done.stderr
    files = sorted(path.relative_to(home) for path in home.rglob("*") if path.is_file())
    ours = (Path(".cache/campo-onnx"), Path(".local/share/campo-onnx"))
    assert [str(path) for path in files if not any(path.is_relative_to(place) for place in ours)] == []


def test_who_wants_telemetry_may_have_it():
    code = "import os, campo_onnx.runtime.onnxruntime.installed as i; i.onnxruntime()\n"
    code += "print(os.environ['ORT_DISABLE_TELEMETRY'])"
    unset = {k: v for k, v in os.environ.items() if k not in _SUPPRESSING}
    for environment, value in ((unset, "1"), (unset | {"ORT_DISABLE_TELEMETRY": "0", "CI": "1"}, "0")):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.stdout.strip() == value, done.stderr
