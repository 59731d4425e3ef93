"""Exported steps against torch eager on this machine, in turns, and the kernels that the difference is in.

    python -m benchmarks.beside_torch [--work DIR] [--limit-s 110] [--only '*_resnet18*']

Needs PyTorch, and timm for two of the networks (``make models`` sets both up). Both sides train from the
same weights on the same batch, with the update: ours on flat tensors, torch's with its default
implementation. Each is a process of its own (in one, their threads disturb each other), which waits while the
other steps; node times are of the profiles of both sides, in the same run. Run it on a quiet machine, again
until it says that all is done. Writes results/beside_torch.json and .md.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from benchmarks.pages import arguments, made, publish
from benchmarks.product_times import PRODUCTS, of_torch, ours
from benchmarks.steps import Call, Facts, Records, Step, add_arguments, call_of, drive, in_own_process
from benchmarks.zoo import TITLES
from campo_onnx.bench.statistics import median_interval, paired_speedup

if TYPE_CHECKING:
    import torch

    Case = tuple[torch.nn.Module, Callable[..., torch.Tensor], tuple[Any, ...], tuple[Any, ...], str]

THREADS = 2
ROUNDS, STEPS, WARMUP = 9, 3, 3
VISITS = 5
"""How often each network is measured, minutes apart: what else the machine's host does comes and goes."""

LR = 1e-3
OTHERS = {
    "encoder": "transformer encoder, 2 layers, 512 wide, 4 x 128",
    "resnet18": "ResNet-18, 8 x 96 x 96",
    "mobilenetv3": "MobileNetV3-small, 8 x 96 x 96",
}
_SECONDS = 20
_PROFILE = "profile\n"


def case_of(name: str) -> "Case":
    """Build a network with its loss and a batch; the same numbers in every process."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    if name == "encoder":
        layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, activation="gelu", batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        return encoder, F.mse_loss, (torch.randn(4, 128, 512),), (torch.randn(4, 128, 512),), "adamw"
    if name in OTHERS:
        from benchmarks.models.from_timm import without_kernels_of_torchvision

        without_kernels_of_torchvision()
        import timm

        network = timm.create_model({"mobilenetv3": "mobilenetv3_small_100"}.get(name, name), num_classes=100)
        batch = (torch.randn(8, 3, 96, 96),), (torch.randint(0, 100, (8,)),)
        return network, F.cross_entropy, *batch, "momentum"
    from benchmarks.zoo.export import ZOO
    from benchmarks.zoo.variants import SMALL

    build, _, make = SMALL[name]
    inputs, targets = make()
    inputs = tuple(torch.randn(v.shape) if v.is_floating_point() else v for v in inputs)
    return build(), ZOO[name].loss, inputs, targets, ZOO[name].optimizer


def export_case(name: str, folder: Path) -> None:
    """Write a step as the README does, without its update, and one that stays with plain convolutions."""
    from campo_onnx.export.torch import export_training_step

    module, loss, inputs, targets, _ = case_of(name)
    forms: Mapping[Path, Mapping[str, Any]] = {
        folder / f"{name}.onnx": {},
        folder / f"{name}.plain.onnx": {"target": "onnxruntime", "conv_weight_gradient": "conv"},
    }
    for path, form in forms.items():
        export_training_step(module, loss, inputs, targets, loss_scale=False, path=path, **form)


def our_step(name: str, path: Path) -> Callable[[], float]:
    """Load the step, and give what runs it and returns the loss."""
    from campo_onnx.export.optimizers import BY_NAME
    from campo_onnx.export.torch.state_dict import first_state
    from campo_onnx.step import naming as step_naming
    from campo_onnx.training.session import TrainingSession
    from campo_onnx.training.weight_update import WeightUpdate

    module, _, inputs, targets, optimizer = case_of(name)
    model = onnx.load(path)
    session = TrainingSession(
        model,
        first_state(module.state_dict(), model),
        update=WeightUpdate(optimizer=BY_NAME[optimizer]),
        settings={step_naming.LEARNING_RATE: LR},
        provider="cpu",
        threads=THREADS,
    )
    given = [v.name for v in model.graph.input if v.name.startswith(("input", "target"))]
    batch = dict(zip(given, (v.numpy() for v in (*inputs, *targets)), strict=True))
    return lambda: session.step(batch).loss


def torch_step(name: str) -> Callable[[], float]:
    """Give what runs torch's step and returns the loss."""
    import torch

    torch.set_num_threads(THREADS)
    module, loss, inputs, targets, optimizer = case_of(name)
    makers: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
        "momentum": lambda p: torch.optim.SGD(p, LR, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, LR),
        "adamw": lambda p: torch.optim.AdamW(p, LR),
    }
    update = makers[optimizer](module.parameters())

    def step() -> float:
        update.zero_grad()
        value = loss(module(*inputs), *targets)
        value.backward()
        update.step()
        return value.item()

    return step


def worker(side: str, name: str, path: str) -> None:
    """Run steps as often as the parent asks, and say how long each took."""
    step = our_step(name, Path(path)) if side == "ours" else torch_step(name)
    losses = [step() for _ in range(WARMUP)]
    print(json.dumps(losses), flush=True)
    for line in sys.stdin:
        if line == _PROFILE:
            print(json.dumps([of_torch(step)]), flush=True)
            continue
        times_ms = []
        for _ in range(int(line)):
            began = time.perf_counter()
            step()
            times_ms.append((time.perf_counter() - began) * 1e3)
        print(json.dumps(times_ms), flush=True)


def in_turns(name: str, path: Path) -> Facts:
    """Time both sides, a few steps each, one after the other."""
    sides = {side: _process(side, name, path) for side in ("ours", "torch")}
    try:
        losses = {side: json.loads(_answer(process)) for side, process in sides.items()}
        times_ms: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(ROUNDS):
            for side, process in sides.items():
                # The first step behind a pause is slower than those in a row.
                times_ms[side] += _asked(process, f"{STEPS + 1}\n")[1:]
        products = _asked(sides["torch"], _PROFILE)[0]
    finally:
        for process in sides.values():
            process.terminate()
    found = {f"{side}_ms": asdict(median_interval(times)) for side, times in times_ms.items()}
    speedup = paired_speedup(times_ms["torch"], times_ms["ours"])
    over_torch = None if speedup is None else asdict(speedup)
    return found | products | {"over_torch": over_torch, "first_losses": losses}


def _process(side: str, name: str, path: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.beside_torch", "--worker", side, name, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _asked(process: "subprocess.Popen[str]", what: str) -> list[Any]:
    assert process.stdin is not None  # it was asked for
    process.stdin.write(what)
    process.stdin.flush()
    answer: list[Any] = json.loads(_answer(process))
    return answer


def _answer(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None  # it was asked for
    while line := process.stdout.readline():
        if line.startswith("["):
            return line
    raise RuntimeError(f"a worker ended with {process.wait()}")


def measure(name: str, folder: Path) -> Facts:
    """Time both sides in turns, then ours node by node.

    ``possible_ms`` is torch's step with ONNX Runtime's products in the place of its own, ``strict_ms``
    these products and nothing else; ``plain_ms`` are the products where a convolution's gradients are
    convolutions, and ``possible_plain_ms`` is torch's step with these.
    """
    path, plain = folder / f"{name}.onnx", folder / f"{name}.plain.onnx"
    found = in_turns(name, path) | in_own_process(ours, path, THREADS)
    plain_ms = in_own_process(ours, plain, THREADS)["products_ms"]
    others_ms = found["torch_ms"]["median"] - found["torch_products_ms"]
    return {
        "model": name,
        **found,
        "possible_ms": others_ms + found["products_ms"],
        "strict_ms": found["products_ms"],
        "plain_ms": plain_ms,
        "possible_plain_ms": others_ms + plain_ms,
    }


def steps_of(folder: Path) -> Iterator[Step]:
    """An export of each network, and its measurements, the others' in between."""
    for visit in range(VISITS):
        for name in (*OTHERS, *TITLES):

            def exported(call: Call, name: str = name) -> Facts:
                in_own_process(export_case, name, folder)
                return {"bytes": (folder / f"{name}.onnx").stat().st_size}

            def timed(call: Call, name: str = name) -> Facts:
                call.deadline.need(_SECONDS)
                return measure(name, folder)

            asked = {"threads": THREADS, "rounds": ROUNDS, "steps": STEPS}
            if visit == 0:
                yield Step(name=f"export_{name}", work=exported, seconds=20)
            yield Step(
                name=f"timed_{name}_{visit}",
                work=timed,
                seconds=_SECONDS,
                asked=asked,
                needs=(f"export_{name}",),
            )


def row_of(visits: Sequence[Facts]) -> Facts:
    """Give the measurement with the median speed-up, and the speed-ups of all.

    Examples
    --------
    >>> visits = [{"over_torch": {"median": x}, "visit": i} for i, x in enumerate((1.0, 0.7, 0.9))]
    >>> row_of(visits)
    {'over_torch': {'median': 0.9}, 'visit': 2, 'speedups': [0.7, 0.9, 1.0]}
    """
    by_speedup = sorted(visits, key=lambda facts: facts["over_torch"]["median"])
    speedups = [facts["over_torch"]["median"] for facts in by_speedup]
    return {**by_speedup[len(by_speedup) // 2], "speedups": speedups}


def publish_found(records: Records) -> tuple[Path, ...]:
    """Write the page of the networks that were measured as often as is asked."""
    rows = []
    for name in (*OTHERS, *TITLES):
        visits = [facts["result"] for facts in records.all(f"timed_{name}_").values()]
        if len(visits) == VISITS:
            rows.append(row_of(visits))
    titles = OTHERS | {name: f"{title}, small" for name, title in TITLES.items()}
    if not rows:
        return ()
    facts = {
        "threads": THREADS,
        "visits": VISITS,
        "products": sorted(PRODUCTS),
        "titles": titles,
        "rows": rows,
    }
    return publish("beside_torch", {"made": made("torch", "timm"), **facts})


def main() -> int:
    """Measure what is not measured yet, then write the page."""
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:5])
        return 0
    parser = arguments(__doc__)
    add_arguments(parser, work="build/beside_torch")
    options = parser.parse_args()
    call = call_of(options)
    return drive(list(steps_of(call.records.folder)), call, options, publish_found)


if __name__ == "__main__":
    sys.exit(main())
