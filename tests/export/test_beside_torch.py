"""A model's step in ONNX Runtime and in PyTorch, in turns, as a session on a GPU times them."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from benchmarks import gpu_torch
from benchmarks.gpu_machine import Session
from benchmarks.pages import number
from benchmarks.steps import Call, Deadline, Records
from benchmarks.zoo.export import ZOO
from benchmarks.zoo.variants import SMALL, export_variant
from campo_onnx.bench.rounds import Schedule
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.store import Store
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.detect import target_of


@pytest.mark.parametrize("name", ["dcgan_generator", "resnet50"])
def test_both_do_the_same_step(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tmp_path / f"{name}_b8.onnx"
    export_variant(name, "small", graph)
    monkeypatch.setitem(ZOO, name, replace(ZOO[name], build=SMALL[name][0]))
    monkeypatch.setattr(gpu_torch, "SCHEDULE", Schedule(rounds=6, warmup=1, budget_s=20.0))
    here = machine("cpu", 1)
    with Store(tmp_path / "timings.sqlite") as store:
        bench = NodeTimer(machine=here, store=store)
        session = Session(folder=tmp_path, bench=bench, device=target_of(here), graphs=(graph,))
        call = Call(records=Records(folder=tmp_path), deadline=Deadline.after(36000))
        result = gpu_torch.against_torch(graph, gpu_torch.ALL_SIDES, session, call)
    assert not result["failures"]
    rows = result["rows"]
    assert {"fp32", gpu_torch.EAGER} <= set(rows)
    assert {label for name, row in rows.items() for label in (name, *row["also"])} == {
        *gpu_torch.ALL_SIDES.labels,
        gpu_torch.EAGER,
    }
    losses = {label: number(row["loss"], ".4f") for label, row in rows.items()}
    assert losses["fp32"] == losses[gpu_torch.EAGER]
    assert rows["fp32"]["step_us"]["median"] > 0
