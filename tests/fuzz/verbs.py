"""Commands for what only users of the library do: checkpoints, plans that are executed."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np


def use_library(words: list[str]) -> None:
    """Run ``VERB FILE ...``, and end as the program does on an error."""
    from campo_onnx.errors import CampoError
    from cli.render.console import print_error

    try:
        VERBS[words[0]](*map(Path, words[1:]))
    except CampoError as error:
        print_error(str(error))
        sys.exit(error.exit_code)


def restore(path: Path) -> None:
    """Read a checkpoint."""
    from campo_onnx.training.checkpoint import load_checkpoint

    load_checkpoint(path)


def save(path: Path) -> None:
    """Write a checkpoint."""
    from campo_onnx.training.checkpoint import Checkpoint, save_checkpoint

    state = {"w": np.zeros(100_000, np.float32)}
    save_checkpoint(Checkpoint(state=state, signature="s", steps=7, scaler=None), path)


def train(path: Path, model: Path) -> None:
    """Go on with training from a checkpoint, by one step."""
    from campo_onnx.training.session import TrainingSession

    rng = np.random.default_rng(0)
    shapes = {"param.w": (32, 64), "param.v": (64, 32)}
    state = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    session = TrainingSession(model, state, settings={"lr": np.float32(0.1)}, provider="cpu", threads=1)
    session.restore(path)
    session.step({"x": rng.standard_normal((16, 32)).astype(np.float32)})


def apply(plan: Path, model: Path) -> None:
    """Execute a plan that was read from a file."""
    from campo_onnx import Options, Plan, oplists, target
    from campo_onnx.files import read_bytes
    from campo_onnx.ir.exporter import export_model
    from campo_onnx.ir.importer import import_model
    from campo_onnx.planning.pipeline import apply as execute
    from campo_onnx.planning.pipeline import problem_of

    read = Plan.from_json(read_bytes(plan, title=str(plan)), title=str(plan))
    imported = import_model(model)
    problem = problem_of(imported, Options(target=target("v100"), lists=oplists("campo")))
    export_model(execute(read, problem, imported).model, Path("out.onnx"), folder=Path())


def keep(plan: Path, model: Path) -> None:
    """Take the plan of a model from a folder of plans, in which a file lies in its place."""
    import shutil

    from campo_onnx import Options, oplists, target
    from campo_onnx.ir.exporter import export_model
    from campo_onnx.ir.importer import import_model
    from campo_onnx.planning.kept_plans import name_of, planned_once

    imported = import_model(model)
    options = Options(target=target("v100"), lists=oplists("tf115"), strategy="tf-amp")
    place = Path("plans")
    place.mkdir(exist_ok=True)
    shutil.copy(plan, place / name_of(imported, options))
    _, mixed = planned_once(imported, options, place)
    export_model(mixed, Path("out.onnx"), folder=Path())


VERBS: dict[str, Callable[..., None]] = {
    "restore": restore,
    "save": save,
    "train": train,
    "apply": apply,
    "keep": keep,
}
