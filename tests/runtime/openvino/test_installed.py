"""OpenVINO missing, broken or old: one message with the command that mends it. It reports nothing."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from campo_onnx.errors import CampoError, DeviceUnavailableError
from campo_onnx.runtime.openvino import installed
from campo_onnx.runtime.openvino.refusal import refuse_types
from campo_onnx.runtime.openvino.runtime import RUNTIME
from tests.conftest import parse_model


def module(**parts):
    openvino = ModuleType("openvino")
    vars(openvino).update(parts)
    return openvino


WHOLE = {"Core": object}


@pytest.mark.parametrize(
    ("imported", "why", "wheel", "problem", "remedy"),
    [
        (None, "No module named 'openvino'", "", "not installed", 'pip install "campo-onnx[openvino]"'),
        (None, "libtbb.so.12: no such file", "2026.4.1", "does not load: libtbb", "uninstall --yes openvino"),
        (module(), "", "2026.4.1", "files of it are missing", "uninstall --yes openvino"),
        (module(**WHOLE), "", "2025.3.0", "2025.3.0 is too old: campo-onnx needs 2026.4", "--upgrade"),
    ],
)
def test_what_is_wrong_is_one_message(monkeypatch, imported, why, wheel, problem, remedy):
    told = installed.problem_with(imported, why, wheel)
    assert problem in told[0]
    assert remedy in told[1]
    monkeypatch.setattr(installed, "_loaded", lambda: (imported, *told))
    with pytest.raises(DeviceUnavailableError, match="OpenVINO cannot be used") as raised:
        RUNTIME.machine("cpu")
    assert problem in str(raised.value)
    assert remedy in str(raised.value)


def test_newer_ones_are_taken():
    assert installed.problem_with(module(**WHOLE), "", "2026.4.1") == ("", "")
    assert installed.problem_with(module(**WHOLE), "", "2027.0.0") == ("", "")


def test_it_runs_on_cpus_only():
    assert "GPU" in RUNTIME.problem("cuda")
    with pytest.raises(DeviceUnavailableError, match="GPU"):
        RUNTIME.tensor([2], 1, "cuda")


def test_it_is_imported_without_telemetry(tmp_path):
    if installed.openvino_problem():
        pytest.skip(installed.openvino_problem())
    program = (
        "import sys; from campo_onnx.runtime.openvino.installed import openvino; openvino();"
        "print([m for m in sys.modules if m.startswith('openvino_telemetry')])"
    )
    home = {"HOME": str(tmp_path), "PYTHONPATH": ":".join(path for path in sys.path if path)}
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], env=home, cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    assert not list(tmp_path.iterdir())  # it would write who asks, and how often


@pytest.mark.parametrize(
    ("dtype", "units", "problem", "remedy"),
    [
        (
            "bfloat16",
            ["FP32"],
            "OpenVINO does not run BF16 on this machine's Old CPU",
            "run the FP32 graph here",
        ),
        ("float16", ["FP32", "BF16"], "does not run FP16", "Plan with --precision bf16"),
        ("float8e4m3fn", ["FP32", "BF16"], "does not run FP8", "Run the graph on ONNX Runtime"),
    ],
)
def test_types_that_this_cpu_does_not_compute_in(dtype, units, problem, remedy):
    model = parse_model(f"agraph ({dtype}[4] x) => (float[4] y) {{ y = Cast <to = 1> (x) }}")
    with pytest.raises(CampoError, match=problem) as raised:
        refuse_types(model, units, "Old CPU")
    assert "input 'x'" in str(raised.value)
    assert remedy in str(raised.value)
    refuse_types(parse_model("agraph (float[4] x) => (float[4] y) { y = Relu (x) }"), units, "Old CPU")
