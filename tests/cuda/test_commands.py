"""The commands on the CUDA provider, from the outside.

On the stubs every time is meaningless, so nothing about figures is asserted: only that the way from end to
end is sound, and that no file can be mistaken for a measurement. Nodes run there, and take what their bytes
say: whether a plan or a fit comes out must not depend on noise.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from campo_onnx.bench.apart import NOTE
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import machine
from tests.cuda.conftest import STUB

ROOT = Path(__file__).parents[2]
GRAPH = str(ROOT / "tests" / "data" / "mlp.onnx")

TIMED_BY_BYTES = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from importlib.metadata import entry_points
from tests.timed_by_bytes import switch_on
switch_on()
(script,) = entry_points(group="console_scripts", name="campo-onnx")
script.load()()
"""

SMALL_MIB = 10
"""Room for one graph, and not for three."""

KNOWN_GPU = "NVIDIA H100 80GB HBM3"
"""Name of the stub where figures of the device are needed; its driver still says what it is."""


def run(*words: str, folder: Path, gpu: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        **settings,
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_DATA_HOME": str(folder / "data"),
    }
    if gpu:
        env["STUB_GPU_NAME"] = gpu  # a real GPU does not care
    program = [str(Path(sys.executable).with_name("campo-onnx"))]
    if machine("cuda").device.startswith(STUB):
        program = [sys.executable, "-c", TIMED_BY_BYTES]
    return subprocess.run(
        [*program, *words], capture_output=True, text=True, env=env, cwd=folder, check=False
    )


def test_bench(cuda: Machine, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    answer = run("bench", GRAPH, GRAPH, "--device", "cuda", "--steps", "6", "-o", str(out), folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(out.read_text())["machine"]["device"] == cuda.device


def test_graphs_that_do_not_fit_together_are_timed_one_after_the_other(cuda: Machine, tmp_path: Path) -> None:
    if not cuda.device.startswith(STUB):
        pytest.skip("a real GPU has room for both")
    graph = str(Path(GRAPH).with_name("resblocks.onnx"))
    words = ("bench", graph, graph, graph, "--device", "cuda", "--steps", "6", "--energy", "off", "-o")

    def result(mib: int) -> dict[str, Any]:
        out = tmp_path / f"{mib}.json"
        answer = run(*words, str(out), folder=tmp_path, STUB_GPU_MIB=str(mib))
        assert answer.returncode == 0, answer.stderr
        return dict(json.loads(out.read_text()))

    roomy, small = result(8192), result(SMALL_MIB)
    assert NOTE not in roomy["notes"]
    assert NOTE in small["notes"]
    assert all(row["step_us"] and not row["failure"] for row in small["rows"])
    assert small["energy_from"] == "not measured: switched off"


def test_bench_captured(cuda: Machine, tmp_path: Path) -> None:
    words = ("bench", GRAPH, "--device", "cuda", "--steps", "6", "--cuda-graph")
    answer = run(*words, folder=tmp_path)
    assert answer.returncode == 0, answer.stderr


def test_profile(cuda: Machine, tmp_path: Path) -> None:
    out = tmp_path / "mlp.parquet"
    words = ("profile", GRAPH, "-o", str(out), "--device", "cuda", "--steps", "2", "--json")
    answer = run(*words, folder=tmp_path, gpu=KNOWN_GPU)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["machine"]["driver"] == cuda.driver


def test_calibrate(cuda: Machine, tmp_path: Path) -> None:
    out = tmp_path / "calibration.json"
    words = ("calibrate", "--ops", "Add", "--shapes", "9", "--counters", "off", "--device", "cuda")
    answer = run(*words, "-o", str(out), folder=tmp_path, gpu=KNOWN_GPU)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(out.read_text())["machine"]["driver"] == cuda.driver


def test_a_device_without_figures_is_not_calibrated(cuda: Machine, tmp_path: Path) -> None:
    if not cuda.device.startswith(STUB):
        pytest.skip("a real GPU has figures")
    words = ("calibrate", "--quick", "--ops", "Add", "--shapes", "9", "--device", "cuda")
    answer = run(*words, folder=tmp_path)
    assert answer.returncode == 8, answer.stderr
    assert cuda.device in answer.stderr
    assert not list(tmp_path.rglob("*.json"))


def test_verification_measures_on_cuda(cuda: Machine, tmp_path: Path) -> None:
    out = tmp_path / "mixed.onnx"
    words = ("optimize", GRAPH, "-o", str(out), "--device", "h100", "--verify", "--verify-steps", "6")
    answer = run(*words, folder=tmp_path, gpu=KNOWN_GPU)
    assert answer.returncode == 0, answer.stderr
    if cuda.device.startswith(STUB):  # a real GPU may find that nothing pays, and then nothing is measured
        assert "Measured on" in answer.stderr
    assert out.exists()


def test_verification_on_another_device_is_refused(cuda: Machine, tmp_path: Path) -> None:
    out = tmp_path / "mixed.onnx"
    answer = run("optimize", GRAPH, "-o", str(out), "--device", "l4", "--verify", folder=tmp_path)
    assert answer.returncode == 6, answer.stderr
    assert not out.exists()


def test_a_graph_is_planned_for_the_gpu_that_is_here_and_checked(cuda: Machine, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.onnx"
    words = ("optimize", GRAPH, "-o", str(mixed), "--device", "auto")
    answer = run(*words, folder=tmp_path, gpu=KNOWN_GPU)
    assert answer.returncode == 0, answer.stderr
    assert "Planning for this machine's NVIDIA" in answer.stdout + answer.stderr
    # Its times are made up, so the step may hold anything; the check's are the public figures of an H100.
    words = ("check", str(mixed), "--against", GRAPH, "--max-drift", "1", "--min-speedup", "0")
    answer = run(*words, folder=tmp_path, gpu=KNOWN_GPU)
    assert answer.returncode == 0, answer.stdout + answer.stderr
