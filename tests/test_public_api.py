"""What `from campo_onnx import ...` gives, in whatever order it is asked for."""

import subprocess
import sys
from importlib import import_module

import pytest

import campo_onnx

PUBLIC = sorted(set(campo_onnx.__all__) - {"__version__"})


def test_the_version_is_the_installed_one():
    from importlib.metadata import version

    assert campo_onnx.__version__ == version("campo-onnx")


def test_dir_lists_the_public_names_only():
    assert dir(campo_onnx) == sorted(campo_onnx.__all__)


def test_every_public_name_has_a_home():
    assert sorted(campo_onnx._HOME) == PUBLIC


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        campo_onnx.optimise  # noqa: B018


@pytest.mark.parametrize("name", PUBLIC)
def test_a_name_is_the_same_thing_before_and_after_its_room_is_loaded(name):
    module, _, attribute = campo_onnx._HOME[name].partition(":")
    # In a process of its own: here every room is loaded already.
    program = (
        f"from campo_onnx import {name} as before\n"
        f"import campo_onnx.pipeline, {module}\n"
        f"from campo_onnx import {name} as after\n"
        f"assert before is after is {module}.{attribute}, after\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("name", PUBLIC)
def test_public_things_are_documented(name):
    module, _, attribute = campo_onnx._HOME[name].partition(":")
    assert getattr(import_module(module), attribute).__doc__
