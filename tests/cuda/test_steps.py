"""Steps on the CUDA provider: captured, out of memory, on a device that vanishes, in a training session."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.export.optimizers import AdamW
from campo_onnx.ir.importer import import_model
from campo_onnx.measure.node_timer import VIEW_NODE
from campo_onnx.measure.one_node import chain_model, one_node_view
from campo_onnx.runtime.api import LoadSettings
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import load
from campo_onnx.step.interface import step_interface
from campo_onnx.training.flat_state import flat_layout
from campo_onnx.training.gradient_interface import gradient_interface
from campo_onnx.training.low_weights import flat_weights, with_low_weights
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import WeightUpdate
from tests.cuda.conftest import Stub, optimized_nodes
from tests.training.momentum_step import LR, batch, first_state, gradient_model

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
GRAPH = DATA / "resblocks.onnx"
STEPS = """
import sys
from pathlib import Path
from campo_onnx.errors import CampoError
from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.feeds import synthesize
from campo_onnx.runtime.registry import load, machine
from campo_onnx.training.flat_state import flat_layout
from campo_onnx.training.gradient_interface import gradient_interface
from campo_onnx.training.low_weights import flat_weights, with_low_weights
imported = import_model(Path(sys.argv[1]))
try:
    step = load(imported.model, machine("cuda")).placed(synthesize(imported.view))
    for _ in range(3):
        step()
except CampoError as error:
    print(error)
    sys.exit(9)
"""


def in_a_process(graph: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", STEPS, str(graph)],
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
        check=False,
    )


@pytest.mark.parametrize("name", ["mlp", "resblocks", "bert2_mlm_sdpa", "alexnet_like"])
def test_a_step_is_captured_once_and_replayed(name: str, cuda: Machine, stub: Stub) -> None:
    imported = import_model(DATA / f"{name}.onnx")
    step = load(imported.model, cuda, settings=LoadSettings(captures=True)).placed(synthesize(imported.view))
    for _ in range(4):
        step()
    counts = stub.counts()
    assert counts["captures"] == 1
    assert counts["replays"] >= 3
    launched = counts["launches"]
    step()
    assert stub.counts()["launches"] == launched, "a replayed step launches nothing of its own"


def test_a_view_inside_a_graph_asks_nothing_of_the_device(cuda: Machine, stub: Stub) -> None:
    asked = []
    for copies in (1, 33):
        step = load(chain_model(VIEW_NODE, copies), cuda).placed(synthesize(one_node_view(VIEW_NODE)))
        step()
        stub.reset()
        step()
        counts = stub.counts()
        asked.append((counts["launches"], counts["inside"], counts["up"], counts["down"]))
    assert asked[0] == asked[1]


def test_patterns_of_memory_do_not_double_what_is_held(cuda: Machine, stub: Stub) -> None:
    imported = import_model(DATA / "bert2_mlm_sdpa.onnx")
    step = load(imported.model, cuda).placed(synthesize(imported.view))
    step()
    first = stub.counts()["used_bytes"]
    step()
    step()
    assert stub.counts()["used_bytes"] <= first * 1.01


def test_a_card_that_is_too_small_is_one_message(stub: Stub) -> None:
    answer = in_a_process(GRAPH, STUB_GPU_MIB="2")
    assert answer.returncode == 9, answer.stderr[-2000:]
    assert "memory" in answer.stdout.lower()
    assert "Traceback" not in answer.stderr


def test_a_device_that_vanishes_is_one_message(stub: Stub) -> None:
    answer = in_a_process(GRAPH, STUB_GPU_LOST_AFTER="300")
    assert answer.returncode == 9, (answer.returncode, answer.stderr[-2000:])
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_training_session_steps(cuda_graph: bool, cuda: Machine) -> None:
    step = ROOT / "benchmarks" / "data" / "transformer_step.onnx"
    imported = import_model(step)
    feeds = synthesize(imported.view)
    interface = step_interface(imported.view, constants=imported.constants)
    state = {name: feeds[name] for name in interface.state}
    session = TrainingSession(step, state, provider="cuda", cuda_graph=cuda_graph)
    batch = {name: feeds[name] for name in interface.feeds if name != "loss_scale"}
    for _ in range(3):
        result = session.step(batch)
    assert result.step == 3
    assert "loss" in result.metrics


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_session_with_a_flat_update_steps(cuda_graph: bool, stub: Stub) -> None:
    update = WeightUpdate(optimizer=AdamW(), clip_norm=1.0, accumulate=2, average_decay=0.9)
    session = TrainingSession(
        gradient_model(scaled=True),
        first_state(),
        update=update,
        settings={"lr": LR},
        provider="cuda",
        cuda_graph=cuda_graph,
    )
    for number in range(4):
        session.step(batch(number))
    stub.reset()
    session.step(batch(4))
    session.step(batch(5))
    counts = stub.counts()
    assert counts["replays" if cuda_graph else "launches"] > 0
    assert counts["up"] <= 2 * len(session.interface.feeds), "only the batch and settings go to the device"
    assert set(session.state()) >= {"param.w", "opt.m.w", "opt.v.w"}


def test_what_is_planned_for_a_flat_session_is_what_runs(cuda: Machine, stub: Stub, tmp_path: Path) -> None:
    """The Casts of the gradient graph that runs, and one more of all weights, are the planned ones."""
    path = ROOT / "tests" / "cuda" / "data" / "attention_step.onnx"
    free = replace(target("v100"), launch_us=1e-6, host_us=1e-6)  # so that a small graph goes low as well
    options = Options(target=free, lists=oplists("campo"), flat_weights=flat_weights)
    planned = optimize_model(path, options)
    assert len(planned.plan.low_nodes) > 50
    feeds = synthesize(planned.imported.view)
    update = WeightUpdate(optimizer=AdamW())
    interface = gradient_interface(planned.imported.view, update)
    changed, taken = with_low_weights(planned.model, flat_layout(interface.shapes()))
    casts = [node for node in optimized_nodes(changed, "cuda") if node.op_type == "Cast"]
    assert len(casts) + 1 == planned.planned_traffic.casts.launches
    assert len(casts) + len(taken) == len([n for n in planned.model.graph.node if n.op_type == "Cast"])
    mixed = tmp_path / "mixed.onnx"
    onnx.save(planned.model, mixed)
    zeros = {name: np.zeros(spec.shape, spec.numpy_dtype) for name, spec in interface.step.state.items()}
    state = {name: feeds.get(name, value) for name, value in zeros.items()}
    session = TrainingSession(mixed, state, update=update, settings={"lr": 1e-3}, provider="cuda")
    inputs = {name: feeds[name] for name in interface.step.feeds if name in feeds and name != "loss_scale"}
    session.step(inputs)
    stub.reset()
    session.step(inputs)
    assert stub.counts()["launches"] > len(casts)
