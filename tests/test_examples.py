"""The examples train, in the environment that has their framework.

``examples/ortmodule_training.py`` needs ORTModule's fixtures and stands in tests/integrations, those of
torch.compile in tests/torch_compile.
"""

import importlib.util
import runpy
from pathlib import Path

import pytest

from campo_onnx.ir.importer import import_model

EXAMPLES = Path(__file__).parent.parent / "examples"
FRAMEWORK = {"train_pytorch": "torch", "train_jax": "jax"}
EXPORT = "export_bert_layer"
ELSEWHERE = {"ortmodule_training", "torch_compile_training", "torch_compile_ddp", "torch_compile_trainer"}

# PyTorch's and JAX's own.
pytestmark = pytest.mark.filterwarnings("ignore:::(torch|jax|onnxscript|copyreg)")


def test_every_example_has_a_test():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*FRAMEWORK, *ELSEWHERE, EXPORT}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80


@pytest.mark.parametrize("name", list(FRAMEWORK))
def test_it_trains_in_mixed_precision(name, capsys):
    framework = FRAMEWORK[name]
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed (make test-frameworks installs it)")
    if framework == "torch" and importlib.util.find_spec("onnxscript") is None:
        pytest.skip("onnxscript is not installed (make test-frameworks installs it)")
    example = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    losses = example["train"]("v100", steps=12)
    assert losses[-1] < 0.75 * losses[0]
    shown = capsys.readouterr().out
    assert int(shown.split(" of ")[0]) > 0, "nothing became low"


def test_the_exporting_example_writes_a_step_with_a_loss_scale(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")
    runpy.run_path(str(EXAMPLES / f"{EXPORT}.py"))["main"](tmp_path / "bert_layer.onnx")
    view = import_model(tmp_path / "bert_layer.onnx").view
    assert "loss_scale" in view.inputs
    assert {f"grad.{name.removeprefix('param.')}" for name in view.inputs if name.startswith("param.")} <= {
        *view.outputs
    }
