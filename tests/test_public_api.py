"""Names that `from campo_onnx import ...` gives, in whatever order they are asked for."""

import pickle
import subprocess
import sys
from copy import deepcopy
from importlib import import_module

import pytest
from onnx import parser

import campo_onnx

PUBLIC = sorted(set(campo_onnx.__all__) - {"__version__"})


def test_the_version_is_the_installed_one():
    from importlib.metadata import version

    assert campo_onnx.__version__ == version("campo-onnx")


def test_dir_lists_the_public_names_only():
    assert dir(campo_onnx) == sorted(campo_onnx.__all__)


def test_every_public_name_has_a_home():
    assert sorted(campo_onnx._HOME) == sorted(campo_onnx.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        campo_onnx.optimise  # noqa: B018


# Every name in a process of its own, in which no room is loaded yet; other packages are, once for all.
SAME_BEFORE_AND_AFTER = """
import os, sys, traceback
from importlib import import_module
import msgspec, onnx.reference, onnx_graphsurgeon, platformdirs, scipy.sparse.csgraph, tomllib
import campo_onnx

def check(name):
    before = getattr(campo_onnx, name)
    import_module("campo_onnx.planning.pipeline")
    module, _, attribute = campo_onnx._HOME[name].partition(":")
    after = getattr(import_module(module), attribute)
    assert before is after is getattr(campo_onnx, name), after

def failed(name):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        check(name)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

assert not [name for name in sys.modules if name.startswith("campo_onnx.")]
sys.exit(", ".join(filter(failed, sys.argv[1:])) or 0)
"""


def test_names_are_the_same_thing_before_and_after_their_room_is_loaded():
    command = [sys.executable, "-W", "ignore", "-c", SAME_BEFORE_AND_AFTER, *PUBLIC]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_a_name_that_is_another_thing_is_told():
    program = SAME_BEFORE_AND_AFTER.replace(
        'import_module("campo_onnx.planning.pipeline")', "campo_onnx.__dict__[name] = 1"
    )
    answer = subprocess.run([sys.executable, "-c", program, *PUBLIC[:2]], capture_output=True, text=True)
    assert answer.stderr.splitlines()[-1] == ", ".join(PUBLIC[:2])


@pytest.mark.parametrize("name", PUBLIC)
def test_public_things_are_documented(name):
    module, _, attribute = campo_onnx._HOME[name].partition(":")
    assert getattr(import_module(module), attribute).__doc__


@pytest.mark.parametrize("copied", [deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_values_can_be_copied_and_sent_to_other_processes(copied):
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]> g (float[512, 512] x, float[512, 512] w)
           => (float[512, 512] y) { p = MatMul(x, w) e = Relu(p) y = MatMul(e, w) }"""
    )
    options = campo_onnx.Options(target=campo_onnx.target("v100"), lists=campo_onnx.oplists("campo"))
    plan = campo_onnx.optimize_model(model, options).plan
    assert copied(options) == options
    assert copied(plan) == plan
