"""What is mutated: one file of every kind that is read, and the commands that read it."""

import hashlib
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import parser

from campo_onnx.calibrate.calibration import Calibration
from campo_onnx.calibrate.cast_model import CastModel
from campo_onnx.calibrate.op_model import OpModel, TimeModel
from campo_onnx.devices.datasheet import device
from campo_onnx.measure.store import Execution
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.providers import Machine
from campo_onnx.training.checkpoint import Checkpoint, save_checkpoint
from campo_onnx.training.loss_scaler import LossScaler
from tests.fuzz.sandbox import Bounds, run

DATA = Path(__file__).parent.parent / "data"

_BRANCHES = """
<ir_version: 10, opset_import: ["": 20, "local": 1]>
step (float[4, 8] x, float[8, 8] w, bool c) => (float[4, 8] y, float[8, 8] g)
{
    h = MatMul(x, w)
    a = local.Half(h)
    y = If(c) <
        then_branch = then () => (float[4, 8] t) { t = Relu(a) },
        else_branch = other () => (float[4, 8] e) { e = Neg(a) }
    >
    z = Transpose<perm = [1, 0]>(x)
    g = MatMul(z, y)
}
<opset_import: ["": 20], domain: "local"> Half (v) => (r)
{ k = Constant<value = float {0.5}>() r = Mul(v, k) }
"""
_LISTS = """title = "mine"
extends = "campo"
[infer]
meaning = "as it comes"
ops = ["Tanh", "com.microsoft:Gelu"]
[rules]
patterns = ["softmax"]
taint_through_decisions = true
"""
_POLICY = """[defaults]
max_drift = 0.02
min_speedup = 0.0
strict = false
device = "v100"
keep_fp32 = ["Softmax"]
[[graph]]
mixed = "mixed.onnx"
against = "step.onnx"
baseline = "plan.json"
inputs = ["batch.npz"]
max_casts = 100
"""

# By file: the commands that read it. %% stands for it.
COMMANDS: dict[str, tuple[str, ...]] = {
    "step.onnx": (
        "optimize %% -o out.onnx --device v100 --plan out.json",
        "optimize %% -o out.onnx --device h200 --strategy tf-amp --precision bf16",
        "compare %% --device v100 --json",
        "check mixed.onnx --against %% --device v100 --junit out.xml",
        "bench %% --device cpu --steps 6 --threads 1 -o out.json",
        "profile %% -o out.parquet --device cpu --steps 1 --threads 1 --store new.sqlite",
        "optimize %% -o out.onnx --device v100 --safety data --inputs batch.npz",
    ),
    "branches.onnx": (
        "optimize %% -o out.onnx --device v100 --plan out.json",
        "compare %% --device v100",
    ),
    "dims.onnx": ("optimize %% -o out.onnx --device v100 --dim B=4",),
    "outside.onnx": (
        "optimize %% -o out.onnx --device v100",
        "check %% --against step.onnx --device v100 --github",
    ),
    "w.bin": ("optimize outside.onnx -o out.onnx --device v100",),
    "mixed.onnx": (
        "check %% --against step.onnx --device v100 --junit out.xml --github",
        "optimize %% -o out.onnx --device v100",
    ),
    "plan.json": (
        "explain %%",
        "explain %% node_linear",
        "explain %% --json",
        "check mixed.onnx --against step.onnx --baseline %%",
    ),
    "lists.toml": ("optimize step.onnx -o out.onnx --device v100 --lists %%",),
    "policy.toml": ("check --policy %% --junit out.xml",),
    "cal.json": (
        "optimize step.onnx -o out.onnx --device %%",
        "compare step.onnx --costs model --device %% --profile profile.parquet",
    ),
    "batch.npz": (
        "optimize step.onnx -o out.onnx --device v100 --safety data --inputs %%",
        "check mixed.onnx --against step.onnx --device v100 --inputs %%",
        "bench step.onnx --device cpu --steps 6 --threads 1 --inputs %%",
    ),
    "profile.parquet": ("optimize step.onnx -o out.onnx --costs model --device cal.json --profile %%",),
    "state.safetensors": ("restore %%",),
    "store.sqlite": (
        "optimize step.onnx -o out.onnx --device cpu --costs measure --store %%",
        "profile step.onnx -o out.parquet --device cpu --steps 1 --threads 1 --store %%",
    ),
}

OUTPUTS = ("out.onnx", "out.json", "out.xml", "out.parquet", "new.sqlite")
"""What commands may write."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command on a folder of which one file was mutated."""

    file: str
    command: str

    @property
    def words(self) -> list[str]:
        """The command line."""
        return self.command.replace("%%", self.file).split()


CASES = tuple(Case(file, command) for file, commands in COMMANDS.items() for command in commands)


def make_folder(folder: Path, *, with_profile: bool = True) -> None:
    """Write every file that commands read, sound; a profile and a store of timings take longer."""
    folder.mkdir()
    shutil.copy(DATA / "mlp.onnx", folder / "step.onnx")
    shutil.copy(DATA / "cnn_artifacts_training_model.onnx", folder / "dims.onnx")
    onnx.save(parser.parse_model(_BRANCHES), folder / "branches.onnx")
    _save_outside(folder)
    (folder / "lists.toml").write_text(_LISTS, encoding="utf-8")
    (folder / "policy.toml").write_text(_POLICY, encoding="utf-8")
    (folder / "cal.json").write_text(_calibration().to_json(), encoding="utf-8")
    np.savez(folder / "batch.npz", **_batch(folder / "step.onnx"))
    state = {"w": np.ones((3, 2), np.float32), "step": np.array(3)}
    save_checkpoint(
        Checkpoint(state=state, signature="s", steps=3, scaler=LossScaler()), folder / "state.safetensors"
    )
    commands = (
        "optimize step.onnx -o mixed.onnx --device v100 --plan plan.json",
        "profile step.onnx -o profile.parquet --device cpu --steps 1 --threads 1 --store store.sqlite",
        "optimize step.onnx -o unused.onnx --device cpu --costs measure --store store.sqlite",
    )
    for command in commands if with_profile else commands[:1]:
        outcome = run(command.split(), folder, Bounds(seconds=300))
        if outcome.code:
            raise RuntimeError(f"{command}: {outcome.code} {outcome.err}")
    if not with_profile:
        return
    (folder / "unused.onnx").unlink()
    with closing(sqlite3.connect(folder / "store.sqlite")) as store:
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        store.execute("PRAGMA journal_mode = DELETE")


def digests(folder: Path) -> dict[str, str]:
    """What every file of a folder holds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _save_outside(folder: Path) -> None:
    model = onnx.load(DATA / "mlp.onnx")
    for value in [v for v in model.graph.input if v.name.startswith("param")]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, value.name))
        model.graph.input.remove(value)
    path = folder / "outside.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)


def _batch(path: Path) -> dict[str, np.ndarray]:
    from campo_onnx.ir.importer import import_model
    from campo_onnx.runtime.feeds import synthesize

    return synthesize(import_model(path).view)


def _calibration() -> Calibration:
    here = Machine(provider="cuda", device="NVIDIA H200", driver="", cuda="", ort="1", tf32=True, threads=0)
    return Calibration(
        machine=here,
        device=device("h200"),
        precision=Precision("fp16"),
        execution=Execution.STREAM,
        cast=CastModel(r_us=1e-4, c_i_us=2.0),
        cast_score=0.9,
        cast_paper_score=0.8,
        host_us=1.0,
        entries=(),
        general=OpModel(features=("time",), weights=(0.5,), sigma_us=0.0, ratios=(0.4, 1.0)),
        general_time=TimeModel(features=("moved_bytes",), weights=(1e-6,), constant_us=3.0),
        failures={},
        measured_at="2026-11-21T05:01:35+00:00",
    )
