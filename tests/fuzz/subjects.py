"""Files that are mutated: one of every kind that is read."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
from onnx import parser

from campo_onnx.calibrate.calibration import Calibration
from campo_onnx.calibrate.op_model import OpModel, TimeModel
from campo_onnx.measure.store import Execution
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.machine import Machine
from campo_onnx.targets.cast_model import CastModel
from campo_onnx.targets.target import target
from campo_onnx.training.session import TrainingSession
from tests.fuzz.cases import CHECK_ALL, GIVEN_ONES, MIXED_ONES, RANDOM_GRAPHS, USER_CALIBRATION
from tests.fuzz.sandbox import Bounds, in_child, run
from tests.random_graphs.generate import random_graph

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
_TINY = """
<ir_version: 10, opset_import: ["": 20]>
step (float[16, 32] x, float[32, 64] "param.w", float[64, 32] "param.v", float lr)
    => (float loss, float[32, 64] "new.w", float[64, 32] "new.v")
{
    h = MatMul(x, "param.w")
    a = Relu(h)
    y = MatMul(a, "param.v")
    e = Sub(y, x)
    s = Mul(e, e)
    loss = ReduceSum<keepdims = 0>(s)
    two = Constant<value = float {2.0}>()
    ge = Mul(e, two)
    at = Transpose<perm = [1, 0]>(a)
    gv = MatMul(at, ge)
    vt = Transpose<perm = [1, 0]>("param.v")
    ga = MatMul(ge, vt)
    zero = Constant<value = float {0.0}>()
    on = Greater(h, zero)
    gh = Where(on, ga, zero)
    xt = Transpose<perm = [1, 0]>(x)
    gw = MatMul(xt, gh)
    dw = Mul(gw, lr)
    dv = Mul(gv, lr)
    "new.w" = Sub("param.w", dw)
    "new.v" = Sub("param.v", dv)
}
"""
# As another converter leaves it, with an input and an output in FP16.
_PARTLY = """
<ir_version: 10, opset_import: ["": 20]>
step (float[16, 32] x, float[64, 32] v, float16[32, 64] w) => (float[16, 32] y, float16[16, 64] h)
{
    x16 = Cast<to = 10>(x)
    h = MatMul(x16, w)
    a = Relu(h)
    v16 = Cast<to = 10>(v)
    y16 = MatMul(a, v16)
    y32 = Cast<to = 1>(y16)
    y = Sub(y32, x)
}
"""
_SCRIPT = """import torch
def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    batch = torch.randn(8, 16), torch.randint(0, 4, (8,))
    loss = torch.nn.functional.cross_entropy
    return model, loss, batch
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
mixed = "tiny_mixed.onnx"
against = "tiny.onnx"
baseline = "tiny_plan.json"
inputs = ["batch.npz"]
max_casts = 100
ranges = { lr = [0, 1] }
"""


def make_folder(folder: Path, *, bare: bool = False) -> None:
    """Write every file that commands read, sound; a profile and a store of timings take longer."""
    folder.mkdir()
    shutil.copy(DATA / "mlp.onnx", folder / "step.onnx")
    shutil.copy(DATA / "cnn_artifacts_training_model.onnx", folder / "dims.onnx")
    onnx.save(parser.parse_model(_BRANCHES), folder / "branches.onnx")
    onnx.save(parser.parse_model(_TINY), folder / "tiny.onnx")
    for name, seed in zip(RANDOM_GRAPHS, (3, 8, 9, 11, 12, 13), strict=True):
        onnx.save(random_graph(seed).model, folder / name)
    _save_outside(folder)
    onnx.save(parser.parse_model(_PARTLY), folder / "partly.onnx")
    half = parser.parse_model(_PARTLY.replace("float[", "float16[").replace("to = 1>", "to = 10>"))
    onnx.save(half, folder / "half.onnx")
    (folder / "train.py").write_text(_SCRIPT, encoding="utf-8")
    (folder / "lists.toml").write_text(_LISTS, encoding="utf-8")
    (folder / "policy.toml").write_text(_POLICY, encoding="utf-8")
    (folder / "cal.json").write_text(_calibration().to_json(), encoding="utf-8")
    (folder / USER_CALIBRATION).parent.mkdir(parents=True)
    shutil.copy(folder / "cal.json", folder / USER_CALIBRATION)
    rng = np.random.default_rng(0)
    batch = {"x": (16, 32), "param.w": (32, 64), "param.v": (64, 32), "lr": ()}
    arrays = {name: np.float32(rng.standard_normal(shape)) for name, shape in batch.items()}
    np.savez(folder / "batch.npz", **arrays)
    in_child(lambda: _save_checkpoint(folder, arrays))
    for name in (GIVEN_ONES, MIXED_ONES):
        (folder / name).mkdir(parents=True)
    for name in ("a.onnx", "b.onnx"):
        shutil.copy(folder / "tiny.onnx", folder / GIVEN_ONES / name)
    commands = [
        *(
            f"optimize {GIVEN_ONES}/{name} -o {MIXED_ONES}/{name} --device v100 --strategy tf-amp"
            for name in ("a.onnx", "b.onnx")
        ),
        "optimize step.onnx -o mixed.onnx --device v100 --plan plan.json",
        "optimize tiny.onnx -o tiny_mixed.onnx --device v100 --strategy tf-amp --plan tiny_plan.json",
        "optimize tiny.onnx -o tiny_graph.onnx --device v100 --strategy tf-amp --execution graph "
        "--plan graph_plan.json",
        f"{CHECK_ALL} --results results.jsonl",
    ]
    if not bare:
        commands += [
            "profile tiny.onnx -o profile.parquet --device cpu --steps 1 --threads 1 --store store.sqlite",
            "optimize tiny.onnx -o unused.onnx --device cpu --costs measure --store store.sqlite",
            "calibrate --device cpu --ops Relu --shapes 9 --store store.sqlite -o unused.json",
        ]
    for command in commands:
        outcome = run(command.split(), folder, Bounds(seconds=300))
        if outcome.code:
            raise RuntimeError(f"{command}: {outcome.code} {outcome.err}")
    for name in ("unused.onnx", "unused.json"):
        (folder / name).unlink(missing_ok=True)
    for file in folder.glob("*.sqlite"):
        with closing(sqlite3.connect(file)) as store:
            store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            store.execute("PRAGMA journal_mode = DELETE")


def _save_outside(folder: Path) -> None:
    model = onnx.load(DATA / "mlp.onnx")
    for value in [v for v in model.graph.input if v.name.startswith("param")]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, value.name))
        model.graph.input.remove(value)
    path = folder / "outside.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)


def _save_checkpoint(folder: Path, arrays: dict[str, np.ndarray]) -> str:
    """Write a checkpoint of the tiny step, after a step; in a child, since it runs a graph."""
    state = {name: array for name, array in arrays.items() if name.startswith("param.")}
    session = TrainingSession(
        folder / "tiny.onnx", state, settings={"lr": arrays["lr"]}, provider="cpu", threads=1
    )
    session.step({"x": arrays["x"]})
    session.save(folder / "state.safetensors")
    return ""


def _calibration() -> Calibration:
    here = Machine(provider="cuda", device="NVIDIA H200", driver="", cuda="", ort="1", tf32=True, threads=0)
    return Calibration(
        machine=here,
        hardware=target("h200").hardware,
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
