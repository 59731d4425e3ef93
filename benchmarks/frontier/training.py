"""Training along the frontier: whether predicted errors order the accuracy that training ends with.

Three small networks learn digits from ten starts by five plans of their frontier, in BF16 as OpenVINO
computes it on a CPU with BF16 units, and in FP32. Dropout is off, so that plans of a start differ in their
roundings only.
"""

import json
import time
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.frontier.steps import NEXT_TO_NOTHING_US, TARGETS

Facts = dict[str, Any]

_UPDATES = {"perceptron": ("adamw", 1e-3), "convolutions": ("momentum", 0.05), "transformer": ("adamw", 3e-3)}
NETWORKS = tuple(_UPDATES)
SEEDS, POINTS, EPOCHS = 10, 5, 12


def prepared(name: str, work: Path) -> Facts:
    """Write a network's step in FP32 and as points of its frontier, the fastest first; give their figures."""
    from dataclasses import replace

    began = time.process_time()
    from benchmarks.measured.plans import form_for_all
    from campo_onnx import Options, Precision, export_model, oplists
    from campo_onnx.costs.evidence import CostSource
    from campo_onnx.emulation.emulated_steps import EmulatedSteps
    from campo_onnx.emulation.frontier import spread_over
    from campo_onnx.emulation.sensitivity import measure_sensitivities, references_of
    from campo_onnx.export.torch import export_training_step
    from campo_onnx.export.torch.state_dict import first_state
    from campo_onnx.ir.importer import import_model
    from campo_onnx.optimize.plan.rewrite import rewrite
    from campo_onnx.planning.frontier import frontier_plans
    from campo_onnx.planning.pipeline import problem_of
    from campo_onnx.targets.target import target

    module, samples, labels = _network(name, 0)
    batch = samples[:64].contiguous(), labels[:64]
    model = export_training_step(module, _loss(), batch[:1], batch[1:], loss_scale=False)
    imported = form_for_all(import_model(model), target("zen5", "openvino"))
    aim = replace(target(TARGETS[Precision.BF16]), launch_us=NEXT_TO_NOTHING_US, host_us=NEXT_TO_NOTHING_US)
    options = Options(
        target=aim,
        lists=oplists("campo"),
        low=Precision.BF16,
        costs=CostSource.DATASHEET,
        min_gain=0.0,
        pads=False,
    )
    problem = problem_of(imported, options)
    names = [v.name for v in model.graph.input if v.name.startswith(("input", "target"))]
    feeds = first_state(module, model) | dict(zip(names, (v.numpy() for v in batch), strict=True))
    with EmulatedSteps(references_of(imported, [feeds]), work / "steps") as steps:
        measured = measure_sensitivities(problem, steps)
    plans = [
        one for one in frontier_plans(problem, imported, options, measured.squared_errors) if one.point.error
    ]
    folder = _folder(name, work)
    folder.mkdir(parents=True, exist_ok=True)
    export_model(imported.model, folder / "fp32.onnx")
    rows = []
    for index, place in enumerate(spread_over(len(plans), POINTS)):
        one = plans[place]
        export_model(rewrite(imported, one.plan), folder / f"{index}.onnx")
        rows.append({"error": one.point.error, "time_us": one.point.time_us, "fp32_us": one.fp32_us})
    (folder / "points.json").write_text(json.dumps(rows), encoding="utf-8")
    return {"name": name, "points": rows, "cpu_s": time.process_time() - began}


def trained(name: str, seed: int, work: Path) -> Facts:
    """Train in FP32 and by each point from one start; test the FP32 weights in FP32, by torch.

    Returns
    -------
    dict
        By plan: ``loss`` and ``accuracy`` (percent) on samples held out, after the last epoch.
    """
    import onnx
    import torch

    from campo_onnx.export.optimizers import BY_NAME
    from campo_onnx.export.torch.state_dict import first_state, state_dict_of
    from campo_onnx.step.naming import LEARNING_RATE
    from campo_onnx.training.session import TrainingSession
    from campo_onnx.training.weight_update import WeightUpdate

    began = time.process_time()
    torch.set_num_threads(1)
    folder = _folder(name, work)
    count = len(json.loads((folder / "points.json").read_text(encoding="utf-8")))
    facts: Facts = {"network": name, "seed": seed}
    for plan in ("fp32", *map(str, range(count))):
        module, samples, labels = _network(name, seed)
        train = len(labels) * 4 // 5
        model = onnx.load(folder / f"{plan}.onnx")
        optimizer, rate = _UPDATES[name]
        session = TrainingSession(
            model,
            first_state(module, model),
            update=WeightUpdate(optimizer=BY_NAME[optimizer]),
            settings={LEARNING_RATE: rate},
            runtime="openvino",
            threads=1,
        )
        batch = [v.name for v in model.graph.input if v.name.startswith(("input", "target"))]
        rng = np.random.default_rng(seed)
        for _ in range(EPOCHS):
            order = torch.from_numpy(rng.permutation(train))
            rows = order[: train - train % 64].split(64)
            steps = ({batch[0]: samples[r].numpy(), batch[1]: labels[r].numpy()} for r in rows)
            last = fmean(result.loss for result in session.train(steps))
        module.load_state_dict(state_dict_of(session.state(), module))
        module.eval()
        with torch.no_grad():
            logits = module(samples[train:])
        right = (logits.argmax(1) == labels[train:]).float().mean()
        facts[plan] = {
            "accuracy": 100.0 * float(right),
            "loss": float(_loss()(logits, labels[train:])),
            "last": last,
        }
    return facts | {"cpu_s": time.process_time() - began}


def _folder(name: str, work: Path) -> Path:
    return work / "trained" / name


def _loss() -> Any:
    import torch

    return torch.nn.functional.cross_entropy


def _network(name: str, seed: int) -> Any:
    """Build a network with its samples and labels; the same weights for the same seed."""
    import torch

    from benchmarks import small_trainings
    from benchmarks.measured.networks import without_dropout

    networks = {
        "perceptron": partial(small_trainings.perceptron, 64, 10),
        "convolutions": small_trainings.convolutions,
        "transformer": small_trainings.Transformer,
    }
    torch.manual_seed(seed)
    return without_dropout(networks[name]()).train(), *small_trainings.data_of("digits")
