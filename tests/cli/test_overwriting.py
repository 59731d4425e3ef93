"""Files that a command reads are never written over, `--force` or not."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory):
    """Filled by the first test that asks for a folder."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def folder(shared_folder, program, tmp_path):
    """A model whose weights lie beside it, a mixed one, and everything else that commands read."""
    if any(shared_folder.iterdir()):
        return shutil.copytree(shared_folder, tmp_path, dirs_exist_ok=True)
    model = onnx.load(MLP)
    for value in [v for v in model.graph.input if v.name.startswith("param")]:
        shape = [size.dim_value for size in value.type.tensor_type.shape.dim]
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), value.name))
        model.graph.input.remove(value)
    onnx.save(model, "step.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert (
        program("optimize", "step.onnx", "-o", "mixed.onnx", "--device", "v100", "--plan", "plan.json") == 0
    )
    for name in ("lists.toml", "batch.npz", "profile.parquet", "store.sqlite"):
        (tmp_path / name).write_bytes(b"something")
    shutil.copy("mixed.onnx", "keep.onnx")
    shutil.copytree(tmp_path, shared_folder, dirs_exist_ok=True)
    return tmp_path


COMMANDS = {
    "optimize": ("optimize step.onnx -o {} --device v100 --force", ("w.bin",)),
    "optimize --plan": (
        "optimize step.onnx -o out.onnx --plan {} --device v100 --force",
        ("w.bin", "step.onnx"),
    ),
    "optimize --lists": ("optimize step.onnx -o {0} --lists {0} --device v100 --force", ("lists.toml",)),
    "optimize --inputs": (
        "optimize step.onnx -o out.onnx --plan {0} --inputs {0} --safety data --device v100 --force",
        ("batch.npz",),
    ),
    "profile": ("profile step.onnx -o {} --device cpu --steps 1 --force", ("step.onnx", "w.bin")),
    "profile --store": ("profile step.onnx -o {0} --store {0} --device cpu --force", ("store.sqlite",)),
    "bench": ("bench step.onnx --device cpu -o {} --force", ("step.onnx", "w.bin")),
    "check": (
        "check mixed.onnx --against step.onnx --baseline plan.json --device v100 --junit {}",
        ("mixed.onnx", "step.onnx", "plan.json", "w.bin"),
    ),
}


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command, names in COMMANDS.values() for name in names]
)
def test_inputs_stay_as_they_are(folder, program, capsys, command, name):
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert program(*command.format(name).split()) == 2
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before
    assert capsys.readouterr().err.count("error:") == 1


def test_the_weights_beside_the_output_by_name(folder, program):
    """A plan named like the data file that the output refers to."""
    data = next(folder.glob("mixed.onnx.*.data"))
    before = data.read_bytes()
    words = ["optimize", "step.onnx", "-o", "other.onnx", "--device", "v100", "--plan", data]
    assert program(*words) == 2
    assert data.read_bytes() == before


def test_the_model_itself_may_be_replaced_and_keeps_its_weights(folder, program):
    before = (folder / "w.bin").read_bytes()
    assert program("optimize", "step.onnx", "-o", "step.onnx", "--device", "v100") == 2
    assert program("optimize", "step.onnx", "-o", "step.onnx", "--device", "v100", "--force") == 0
    assert (folder / "w.bin").read_bytes() == before
    assert program("optimize", "step.onnx", "-o", "again.onnx", "--device", "v100") == 0


def test_a_link_to_the_model_is_not_the_model_by_name(folder, program, capsys):
    before = (folder / "step.onnx").read_bytes()
    (folder / "link.onnx").symlink_to("step.onnx")
    assert program("optimize", "step.onnx", "-o", "link.onnx", "--device", "v100", "--force") == 2
    assert "--output and MODEL are the same file" in capsys.readouterr().err.replace("\n", " ")
    assert (folder / "step.onnx").read_bytes() == before
    assert program("optimize", "step.onnx", "-o", "./step.onnx", "--device", "v100", "--force") == 0
