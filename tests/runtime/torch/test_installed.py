"""PyTorch missing, broken or old: one message with the command that mends it."""

import pytest

from campo_onnx.errors import DeviceUnavailableError
from campo_onnx.runtime.torch import installed
from campo_onnx.runtime.torch.runtime import RUNTIME


@pytest.mark.parametrize(
    ("wheel", "loads", "problem", "remedy"),
    [
        ("", "", "PyTorch is not installed", 'pip install "campo-onnx[torch]"'),
        ("2.13.0", "libc10.so: no such file", "does not load: libc10", "uninstall --yes torch"),
        ("2.8.1+cpu", "", "2.8.1+cpu is too old: campo-onnx[torch] takes 2.9 or newer", "--upgrade"),
    ],
)
def test_what_is_wrong_is_one_message(monkeypatch, wheel, loads, problem, remedy):
    told = installed.problem_with(wheel, loads)
    assert problem in told
    assert remedy in told
    monkeypatch.setattr("campo_onnx.runtime.torch.runtime.torch_problem", lambda: told)
    with pytest.raises(DeviceUnavailableError, match="torch cannot be used") as raised:
        RUNTIME.machine("cpu")
    assert remedy in str(raised.value)
    assert RUNTIME.problem("cpu") == told


def test_newer_ones_are_taken_and_those_that_are_not_tested_are_named():
    assert not installed.problem_with("2.9.0", "")
    assert not installed.problem_with("3.0.0", "")
    assert "is not tested" in installed.untested("2.9.0")
    assert not installed.untested("2.13.1")


def test_a_version_that_is_too_old_is_not_installed(monkeypatch):
    monkeypatch.setattr("campo_onnx.runtime.torch.runtime.installed_version", lambda: "2.8.0")
    assert RUNTIME.installed == ""
    monkeypatch.setattr("campo_onnx.runtime.torch.runtime.installed_version", lambda: "2.9.0")
    assert RUNTIME.installed == "2.9.0"


def test_on_a_machine_without_cuda_it_says_why():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert RUNTIME.problem("cuda")
    with pytest.raises(DeviceUnavailableError, match="torch cannot be used"):
        RUNTIME.tensor([2], 1, "cuda")
