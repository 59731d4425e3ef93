"""Final accuracy in BF16 as this processor's units compute it: the Campo paper's Table 3 in small.

    python -m benchmarks.measured.trained [--seeds 10] [--only vgg16] [--work DIR] [--time]

Small variants of the paper's six models learn scikit-learn's digits on OpenVINO, from the same weights and in
the same order of batches: in FP32, and by the plans of an op list (TF_AMP's), of Campo's traverses, and of
the exact optimum. Nothing is emulated. After each epoch the FP32 weights are tested in FP32, by torch, on
images held out. With ``--time``, on a quiet machine, the steps are timed in turns as well, which gives the
time to an accuracy. Every run is kept when it ends: kill the command at any time, and run it again. Needs a
CPU with BF16 units, OpenVINO, PyTorch and scikit-learn. Writes results/measured_accuracy.json and .md.
"""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from benchmarks import pages
from benchmarks.accuracy import paired
from benchmarks.measured import LEARNER
from benchmarks.pages import RESULTS, arguments, publish
from campo_onnx.scale.local import LocalPool
from campo_onnx.scale.results import Results
from campo_onnx.scale.work import Task, run

if TYPE_CHECKING:
    from benchmarks.measured.learners import Learner

Facts = dict[str, Any]

STRATEGIES = ("fp32", "tf-amp", "campo", "optimal")
SEEDS = 10
TRAIN, BATCH = 1437, 64
_TOP = 5
_ASKED = 0.99  # of the accuracy that FP32 ends with
_WORKERS = 2


def train(name: str, strategy: str, seed: int, graphs: Path) -> Facts:
    """Train once, and test after each epoch on the images held out.

    Returns
    -------
    dict
        ``top1`` and ``top5`` by epoch, in percent; ``losses``, the mean of each epoch.
    """
    import onnx
    import torch

    from benchmarks.measured.learners import LEARNERS, built, digits
    from benchmarks.measured.plans import RUNTIME, folder_of
    from campo_onnx.export.optimizers import BY_NAME
    from campo_onnx.export.torch.state_dict import first_state, state_dict_of
    from campo_onnx.step.naming import LEARNING_RATE
    from campo_onnx.training.session import TrainingSession
    from campo_onnx.training.weight_update import WeightUpdate

    began = time.process_time()
    torch.set_num_threads(1)
    learner = LEARNERS[name]
    samples, labels = digits(learner.enlarged)
    model = onnx.load(folder_of(LEARNER + name, graphs) / f"{strategy}.onnx")
    module = built(name, seed)
    batch = [v.name for v in model.graph.input if v.name.startswith(("input", "target"))]
    session = TrainingSession(
        model,
        first_state(module, model),
        update=WeightUpdate(optimizer=BY_NAME[learner.optimizer]),
        settings={LEARNING_RATE: learner.rate},
        runtime=RUNTIME,
        threads=1,
    )
    rng = np.random.default_rng(seed)
    facts: Facts = {"network": name, "strategy": strategy, "seed": seed, "top1": [], "top5": [], "losses": []}
    for _ in range(learner.epochs):
        order = torch.from_numpy(rng.permutation(TRAIN))
        rows = order[: TRAIN - TRAIN % BATCH].split(BATCH)
        steps = ({batch[0]: samples[r].numpy(), batch[1]: labels[r].numpy()} for r in rows)
        facts["losses"].append(fmean(result.loss for result in session.train(steps)))
        module.load_state_dict(state_dict_of(session.state(), module))
        for key, share in zip(
            ("top1", "top5"), _tested(module, samples[TRAIN:], labels[TRAIN:]), strict=True
        ):
            facts[key].append(100 * share)
    return facts | {"cpu_s": time.process_time() - began}


def _tested(module: Any, samples: Any, labels: Any) -> Iterator[float]:
    """Give the shares of images whose label is the first, and among the first five, by logit."""
    import torch

    module.eval()
    with torch.no_grad():
        logits = module(samples)
    logits = logits[0] if isinstance(logits, tuple) else logits
    places = logits.topk(_TOP, dim=1).indices == labels[:, None]
    yield float(places[:, 0].float().mean())
    yield float(places.any(dim=1).float().mean())


def row_of(learner: "Learner", runs: Sequence[Facts], plans: Facts, timed: Facts | None) -> Facts:
    """Put together what one network's runs show; each strategy beside FP32, seed by seed."""
    by = {s: sorted((r for r in runs if r["strategy"] == s), key=lambda r: r["seed"]) for s in STRATEGIES}
    wanted = _ASKED * fmean(run["top1"][-1] for run in by["fp32"])
    rows: Facts = {}
    for strategy, of in by.items():
        reached = [_epochs_to(run["top1"], wanted) for run in of]
        arrived = [epochs for epochs in reached if epochs is not None]
        step_ms = None if timed is None else float(np.median(timed["rounds_ms"][strategy]))
        epochs = fmean(arrived) if arrived else None
        rows[strategy] = {
            **{key: _spread([run[key][-1] for run in of]) for key in ("top1", "top5")},
            "difference": paired((r["top1"][-1] for r in of), (r["top1"][-1] for r in by["fp32"])),
            "loss": _spread([run["losses"][-1] for run in of]),
            "reached": len(arrived),
            "epochs": epochs,
            "step_ms": step_ms,
            "seconds": None
            if None in (step_ms, epochs)
            else cast(float, step_ms) * epochs * (TRAIN // BATCH) / 1e3,
            **plans[strategy],
        }
    return {
        "title": learner.title,
        "epochs": learner.epochs,
        "optimizer": learner.optimizer,
        "rate": learner.rate,
        "seeds": len(by["fp32"]),
        "wanted": wanted,
        "rows": rows,
    }


def _epochs_to(accuracies: Sequence[float], wanted: float) -> int | None:
    return next((epoch for epoch, value in enumerate(accuracies, 1) if value >= wanted), None)


def _spread(values: Sequence[float]) -> Facts:
    return {"mean": fmean(values), "deviation": stdev(values) if len(values) > 1 else 0.0}


def main() -> None:
    """Train what is not trained yet, and write the page."""
    parser = arguments(__doc__)
    add = parser.add_argument
    add("--seeds", type=int, default=SEEDS)
    add("--only", nargs="+", metavar="NAME", help="of these networks")
    add("--time", action="store_true", help="time steps in turns: on a quiet machine")
    add("--work", type=Path, default=Path("build/measured"), help="where graphs and runs are kept")
    add("--out", type=Path, default=RESULTS, help="where the page goes")
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    os.environ |= {"XDG_DATA_HOME": str(work / "data"), "XDG_CACHE_HOME": str(work / "cache")}

    from benchmarks.measured.learners import LEARNERS, digits
    from benchmarks.measured.plans import calibration_here, plans_of, prepare
    from benchmarks.measured.turns import Effort, here, in_turns
    from campo_onnx.version import source_digest

    facts, graphs, calibration = here(), work / "graphs", calibration_here()
    key = f"{facts['machine']['cpu']}, {facts['made']['versions']}, {source_digest()}, {calibration}"
    names = options.only or [*LEARNERS]
    for name in names:
        if plans_of(LEARNER + name, graphs, key) is None:
            prepare(LEARNER + name, graphs, key, "auto" if calibration else "datasheet")
            print(f"prepared {name}", flush=True)
    tasks = [
        Task(key=f"{name} {strategy} {seed}, {key}", function=train, arguments=(name, strategy, seed, graphs))
        for name in names
        for seed in range(options.seeds)
        for strategy in STRATEGIES
    ]
    effort = Effort(0.1, 4.0, 12, 60.0)
    turns = [
        Task(
            key=f"time {name}, {key}",
            function=in_turns,
            arguments=(LEARNER + name, graphs, STRATEGIES, effort),
        )
        for name in names
    ]
    with Results(work / "trained.jsonl") as results:
        with LocalPool(_WORKERS) as pool:
            outcomes = run(tasks, pool, results, _told)
        if options.time:
            with LocalPool(1) as pool:
                run(turns, pool, results, _told)
        timed = {task.arguments[0]: results.get(task.key) for task in turns}
    if failures := {key: outcome.failure for key, outcome in outcomes.items() if outcome.failure}:
        raise SystemExit(f"{len(failures)} not trained, such as {next(iter(failures.items()))}")
    runs = [outcome.value for outcome in outcomes.values()]
    rows = [
        row_of(
            LEARNERS[name],
            [one for one in runs if one["network"] == name],
            cast(Facts, plans_of(LEARNER + name, graphs, key)),
            timed[LEARNER + name],
        )
        for name in names
    ]
    data = {
        **{name: facts[name] for name in ("made", "machine")},
        "calibration": calibration,
        "train": TRAIN,
        "held_out": len(digits(1)[1]) - TRAIN,
        "batch": BATCH,
        "asked": _ASKED,
        "cpu_minutes": sum(one["cpu_s"] for one in runs) / 60,
        "rows": rows,
    }
    print(*publish("measured_accuracy", data, options.out))
    if options.out.resolve() == RESULTS.resolve():
        pages.main(("accuracy",))


def _told(done: int, total: int) -> None:
    print(f"{done} of {total}", flush=True)


if __name__ == "__main__":
    main()
