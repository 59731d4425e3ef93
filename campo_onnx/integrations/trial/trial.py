"""A training step of the user's: exported, planned, measured here beside torch's, predicted elsewhere."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.files import temporary_folder
from campo_onnx.integrations.trial.planned import (
    LISTS,
    computes_low,
    draws,
    export_step,
    plan_step,
    predicted,
)
from campo_onnx.integrations.trial.result import MIXED, OURS, PlanFacts, Trial
from campo_onnx.integrations.trial.script import check_torch
from campo_onnx.ir.importer import Imported
from campo_onnx.measure.store import Store, default_path
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.runtime.machine import CPU, CUDA, DEFAULT, Machine, cores
from campo_onnx.runtime.registry import AUTO, machine, runtimes
from campo_onnx.targets.detect import resolve_target, this_cpu
from campo_onnx.targets.target import Target, targets
from campo_onnx.targets.target import target as target_called

if TYPE_CHECKING:
    import torch

    from campo_onnx.integrations.trial.torch_steps import TorchStep

Progress = Callable[[str, int, int], None]
"""Called with the phase, the work done in it, and its total; 0 where that is not known."""

_IDLE = 1.5  # beside our own process, one more that is small


def try_step(
    module: "torch.nn.Module",
    loss: Callable[..., Any],
    batch: Any,
    *,
    name: str = "step",
    runtime: str = AUTO,
    threads: int = 0,
    compiles: bool = False,
    steps: int = 24,
    seconds: float | None = 40.0,
    costs: CostSource = CostSource.AUTO,
    devices: Sequence[str] | None = None,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Trial:
    """Export a training step, plan it, measure it here beside torch's own, and predict it for GPUs.

    Every step is forward, loss and backward, without the update of the weights. Those of torch run in this
    process, each of ours in one of its own; they take turns, one after another in random order.

    Parameters
    ----------
    module, loss
        What is trained: ``loss(module(*inputs), *targets)`` is a scalar. The module is copied, and stays as
        it is. It may be on a GPU; then everything runs there.
    batch
        A pair of inputs and targets, each a tensor, a tuple of arguments or a mapping by name; or a tensor
        or a mapping of inputs alone.
    name
        Name of the step, for tables.
    runtime
        Name of the runtime that runs our steps. ``"auto"`` takes one that computes in a low precision on
        this processor, else ONNX Runtime.
    threads
        Threads of every step on a CPU; 0 takes all cores.
    compiles
        Whether torch.compile runs as well, which takes minutes on large networks.
    steps, seconds
        Timed rounds at most, and the time after which no further one begins.
    costs
        Where costs for this machine come from.
    devices
        Names of devices to predict for; None takes every GPU with public figures.
    seed
        Of the order in which steps take turns.
    on_progress
        Called with phase, work done and total.

    Raises
    ------
    UsageError
        If torch is not installed, module, loss and batch do not fit each other, or torch's own step fails.
    UnsupportedModelError
        If the step cannot be exported.
    """
    check_torch()
    from campo_onnx.integrations.trial.sides import Sides, write_batch
    from campo_onnx.integrations.trial.torch_steps import TorchStep, threads_of_torch

    tell = on_progress or (lambda phase, done, total: None)
    gpus = [one for one in targets().values() if one.hardware.is_gpu]
    elsewhere = gpus if devices is None else [target_called(one) for one in devices]
    user = TorchStep.of(module, loss, batch)
    user.run(user.module, autocasts=False)
    here, target = _target(user, runtime, threads)
    with temporary_folder() as folder, _costs(CostSource(costs), target, tell) as (source, evidence):
        tell("exporting", 0, 0)
        exported = export_step(user, folder / "fp32.onnx", target)
        options = Options(target=target, lists=preset(LISTS), costs=source, evidence=evidence)
        plan = plan_step(exported, options, folder / "mixed.onnx")
        write_batch(user, exported, folder / "batch.npz")
        graphs = {OURS: folder / "fp32.onnx"} | ({MIXED: folder / "mixed.onnx"} if plan.low_nodes else {})
        sides = Sides(user=user, graphs=graphs, batch=folder / "batch.npz", machine=here)
        tell("loading", 0, 0)
        with threads_of_torch(here.threads):
            result, errors = sides.measured(
                compiles=compiles,
                rounds=steps,
                budget_s=seconds,
                seed=seed,
                on_progress=partial(tell, "measuring"),
            )
    return Trial(
        name=name,
        measured=result,
        gradients=() if draws(exported) else errors,
        plan=plan,
        predictions=tuple(predicted(user, elsewhere, partial(tell, "predicting"))),
        notes=tuple(_notes(exported, here, target, plan)),
    )


def _target(user: "TorchStep", runtime: str, threads: int) -> tuple[Machine, Target]:
    """Find the runtime and the device that our steps run on: the processor that the module is on."""
    processor = CUDA if user.is_on_gpu else CPU
    if runtime == AUTO:
        unasked = (one for one in runtimes() if one.capabilities.is_chosen_unasked)
        usable = [one.name for one in unasked if not one.problem(processor)]
        computing = (name for name in usable if computes_low(_planned_for(processor, name)))
        runtime = next(computing, DEFAULT)
    return machine(processor, threads, runtime), _planned_for(processor, runtime)


def _planned_for(processor: str, runtime: str) -> Target:
    return this_cpu(runtime) if processor == CPU else resolve_target(AUTO, runtime)[0]


@contextmanager
def _costs(costs: CostSource, target: Target, tell: Progress) -> Iterator[tuple[CostSource, Evidence]]:
    """Open the store of timings where costs are measured; nothing is decided without low arithmetic."""
    if costs is CostSource.DATASHEET or not computes_low(target):
        yield CostSource.DATASHEET, Evidence()
        return
    with Store(default_path()) as store:
        yield costs, Evidence(store=store, on_progress=partial(tell, "measuring nodes"))


def _notes(exported: Imported, here: Machine, target: Target, plan: PlanFacts) -> Iterator[str]:
    yield "A step is forward, loss and backward, without the update of the weights."
    if hasattr(os, "getloadavg") and (load := os.getloadavg()[0]) > cores() + _IDLE:
        yield (
            f"The machine was busy: {load:.1f} processes wanted its {cores()} cores. It slows steps of many "
            "threads most; measure again when it is quiet."
        )
    if draws(exported):
        yield "Gradients were not compared: the step draws random numbers. Set dropout to 0 to compare them."
    if not computes_low(target):
        yield (
            f"Our step stays FP32 here: {here.software} computes in no low precision on {here.device}. "
            "On a CPU with BF16 units OpenVINO does: pip install 'campo-onnx[openvino]'."
        )
    elif not plan.low_nodes:
        yield f"Our step stays FP32 here: no plan in {plan.low.upper()} is predicted to be faster."
