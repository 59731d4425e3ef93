"""Where OpenVINO cannot run something: one message with the remedy, and its exit code, nothing written."""

from pathlib import Path
from types import ModuleType, SimpleNamespace

import onnx
import pytest

from campo_onnx.hardware.processor import Processor
from campo_onnx.runtime.openvino import installed
from campo_onnx.targets import detect
from tests.conftest import DATA, parse_model

STEP = DATA / "alexnet_like.onnx"
ZEN3 = Processor(vendor="AuthenticAMD", family=25, model=1, features=frozenset({"avx2"}))
PRODUCT = "agraph (float[4,4] x) => (float[4,4] y) {{ {} }}"
BF16 = """
  low = Cast <to = 16> (x)
  product = MatMul (low, low)
  y = Cast <to = 1> (product)
"""
REFUSED = """
  training = Constant <value = bool {1}> ()
  ratio = Constant <value = float {0.5}> ()
  a = com.microsoft.GatedAdd (x, x, x)
  b = com.microsoft.GeluGrad (a, x)
  y, mask = Dropout (b, ratio, training)
"""


@pytest.fixture
def refused(program, capsys):
    """Run a command that is refused; give its message and exit code."""

    def run(*words: object) -> tuple[int, str]:
        code = program(*words)
        printed = capsys.readouterr()
        assert printed.out == ""
        (message,) = (line for line in printed.err.splitlines() if line.startswith("error: "))
        return code, message

    return run


@pytest.fixture
def wheel(monkeypatch):
    """Let another wheel be installed, or none."""

    def install(version: str, **parts: object) -> None:
        module = ModuleType("openvino") if version else None
        if module is not None:
            vars(module).update(parts)
        problem = installed.problem_with(module, "No module named 'openvino'", version)
        monkeypatch.setattr(installed, "_loaded", lambda: (module, *problem))
        monkeypatch.setattr(installed, "installed_version", lambda: version)

    return install


@pytest.mark.parametrize(
    ("version", "what", "remedy"),
    [
        ("", "OpenVINO is not installed", 'pip install "campo-onnx[openvino]"'),
        ("2025.3.0", "OpenVINO 2025.3.0 is too old: campo-onnx needs 2026.4", "pip install --upgrade"),
    ],
    ids=["missing", "old"],
)
@pytest.mark.parametrize("command", [("bench", STEP), ("optimize", STEP, "--verify", "-o", "mixed.onnx")])
def test_without_a_fitting_wheel(refused, wheel, command, version, what, remedy):
    wheel(version, Core=object)
    code, message = refused(*command, "--runtime", "openvino")
    assert code == 8
    assert what in message
    assert remedy in message
    assert not Path("mixed.onnx").exists()


def test_another_cpu_is_not_measured(refused, wheel, monkeypatch):
    wheel("2026.4.1", Core=object)
    monkeypatch.setattr(detect, "this_processor", lambda: ZEN3)
    words = ("optimize", STEP, "-o", "mixed.onnx", "--runtime", "openvino", "--device", "zen5", "--verify")
    code, message = refused(*words)
    assert code == 6
    assert "zen5 cannot be measured here: this machine has" in message
    assert "--costs model or datasheet" in message
    assert not Path("mixed.onnx").exists()


def test_bf16_without_units_is_refused(refused, monkeypatch):
    if problem := installed.openvino_problem():
        pytest.skip(problem)
    from campo_onnx.runtime.openvino import program as programs

    old_cpu = SimpleNamespace(get_property=lambda *_: ["FP32", "INT8"])
    monkeypatch.setattr(programs, "core", lambda: old_cpu)
    onnx.save(parse_model(PRODUCT.format(BF16), 22), "bf16.onnx")
    code, message = refused("profile", "bf16.onnx", "--runtime", "openvino", "-o", "profile.parquet")
    assert code == 8
    assert "OpenVINO does not run BF16 on this machine's" in message
    assert "'Cast' (Cast) is BF16" in message
    assert "run the FP32 graph here" in message
    assert not Path("profile.parquet").exists()


def test_refused_operators_are_in_one_message(refused):
    if problem := installed.openvino_problem():
        pytest.skip(problem)
    onnx.save(parse_model(PRODUCT.format(REFUSED), 20), "step.onnx")
    code, message = refused("profile", "step.onnx", "--runtime", "openvino", "-o", "profile.parquet")
    assert code == 4
    for part in ("refuses", "com.microsoft.GatedAdd", "com.microsoft.GeluGrad", "without a target"):
        assert part in message
    assert not Path("profile.parquet").exists()
