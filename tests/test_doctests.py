"""Every example in a docstring is true."""

import doctest
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OPTIONAL = {"torch", "jax", "onnxscript"}


def modules() -> list[str]:
    """Modules whose source holds an example, by the name they are imported by."""
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    packages = {"campo_onnx": "campo_onnx", "cli": script.module.partition(".")[0]}
    names = []
    for folder, package in packages.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf-8"):
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                names.append(".".join((package, *(part for part in parts if part != "__init__"))))
    return names


def test_there_are_examples():
    assert len(modules()) > 5


@pytest.mark.parametrize("name", modules())
def test_examples(name):
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"{error.name} is not installed")
    examples = [e for t in doctest.DocTestFinder().find(module) for e in t.examples]
    assert examples
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert not result.failed
