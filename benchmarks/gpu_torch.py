"""The zoo's models as strategies mix them and as PyTorch itself trains them, step by step in turns.

Parameters, buffers and the batch are those of the graph, so that both do the same step from the same state.
PyTorch runs with its own defaults, and with its mixed precision as its documentation has it: autocast to
FP16 with a gradient scaler, in channels-last too, which it advises for convolutions; autocast to BF16; and
the FP16 form compiled.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.evaluation.stepped import Candidate
from benchmarks.evaluation.strategies import CAMPO, FP32, OPTIMAL, TF_AMP, TORCH_AMP
from benchmarks.gpu_machine import Session
from benchmarks.gpu_plans import planned
from benchmarks.steps import Call
from benchmarks.zoo import TITLES
from campo_onnx.bench.graphs import Graph
from campo_onnx.bench.loading import Buffers, open_step
from campo_onnx.bench.rounds import Schedule, time_rounds
from campo_onnx.bench.statistics import median_interval, paired_speedup
from campo_onnx.errors import CampoError
from campo_onnx.runtime.feeds import Feeds, synthesize
from campo_onnx.runtime.timing import GPU_SPIN_S

if TYPE_CHECKING:
    import torch

    from benchmarks.zoo.export import Entry

LR, LOSS_SCALE = 1e-3, 1024.0
EAGER = "torch"
SCHEDULE = Schedule(rounds=50, warmup=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A way in which PyTorch trains."""

    low: str | None = None  # the type that autocast takes, as an attribute of torch
    is_channels_last: bool = False
    is_compiled: bool = False


FORMS: Mapping[str, Form] = {
    EAGER: Form(),
    "torch AMP": Form(low="float16"),
    "torch AMP, BF16": Form(low="bfloat16"),
    "torch AMP, channels last": Form(low="float16", is_channels_last=True),
}

_ADVISED = {label: FORMS[label] for label in (EAGER, "torch AMP")}
_COMPILED = {EAGER: Form(), "torch.compile, AMP": Form(low="float16", is_compiled=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Who takes turns: our strategies, and ways in which PyTorch trains.

    Parameters
    ----------
    labels
        Strategies.
    forms
        Ways of PyTorch, by label.
    captures
        Whether our steps run as CUDA graphs.
    """

    labels: Sequence[str]
    forms: Mapping[str, Form]
    captures: bool = False


ALL_SIDES = Sides(labels=(FP32, TF_AMP, TORCH_AMP, CAMPO, OPTIMAL), forms=FORMS)
REPLANNED_SIDES = Sides(labels=(FP32, TF_AMP, CAMPO, OPTIMAL), forms=_ADVISED)
CAPTURED_SIDES = Sides(labels=(FP32, OPTIMAL), forms=_ADVISED, captures=True)
COMPILED_SIDES = Sides(labels=(FP32, OPTIMAL), forms=_COMPILED)
"""Apart, as a compiler takes a minute for a model."""

_AHEAD = 20
"""Steps that PyTorch is given without waiting for their ends, as in a loop that reads no loss."""


def zoo_model(graph: Path) -> str | None:
    """Name the model of the zoo that a graph was exported from; None where it is of none.

    Examples
    --------
    >>> zoo_model(Path("bert_large_b10.onnx"))
    'bert_large'
    """
    name, _, batch = graph.stem.rpartition("_b")
    return name if name in TITLES and batch.isdecimal() else None


def against_torch(graph: Path, sides: Sides, session: Session, call: Call) -> dict[str, Any]:
    """Step a model in ONNX Runtime, as strategies plan it, and in PyTorch, in turns.

    Every graph is loaded once, for all rounds, which a lent machine has time for. Differences between loads,
    such as other algorithms that cuDNN's search chooses, show in the intervals of :func:`bench_graph` alone.
    """
    call.deadline.need(session.round_s)
    zoo, problem = _zoo(session)
    own = planned(graph, sides.labels, session)
    feeds = settled(synthesize(own[0].imported.view))
    buffers = Buffers(own[0].imported.view, feeds, session.bench.machine, seed=0)
    steps: dict[str, Callable[[], None]] = {}
    failures: dict[str, str] = {EAGER: problem} if problem else {}
    losses: dict[str, float] = {}
    for member in own:
        call.deadline.tick(0, 1)
        with _failing_into(failures, member.labels[0]):
            loss, step = _our_step(member, buffers, sides, session)
            losses[member.labels[0]], steps[member.labels[0]] = loss, step
    ahead: dict[str, Callable[[], None]] = {}
    for label in () if problem else (EAGER,) if session.on_cpu else sides.forms:
        with _failing_into(failures, label):
            entry = zoo[zoo_model(graph) or ""]
            eager = _EagerStep.make(entry, feeds, "cpu" if session.on_cpu else "cuda", sides.forms[label])
            losses[label] = eager.loss_of_step()
            steps[label], ahead[label] = eager.step_and_wait, eager.steps_ahead
    timed = [*steps]
    spin_s = 0.0 if session.on_cpu else GPU_SPIN_S
    schedule = replace(SCHEDULE, budget_s=session.round_s, spin_s=spin_s)
    rounds = time_rounds(steps, schedule, on_progress=call.deadline.tick)
    failures |= {label: failure.text for label, failure in rounds.failures.items()}
    samples_us = {label: rounds.samples_us.get(label, ()) for label in timed if label not in failures}
    eager_us, fp32_us = samples_us.get(EAGER, ()), samples_us.get(FP32, ())
    plans = {member.labels[0]: member for member in own}
    rows = {
        label: {
            "step_us": asdict(median_interval(times_us)),
            "over_torch": _interval(paired_speedup(eager_us, times_us)),
            "over_fp32": _interval(paired_speedup(fp32_us, times_us)) if label in plans else None,
            "also": plans[label].labels[1:] if label in plans else (),
            "predicted_us": plans[label].predicted_us if label in plans else None,
            "casts": plans[label].casts if label in plans else None,
            "ahead_us": _ahead_us(ahead[label]) if label in ahead else None,
            "loss": losses[label],
        }
        for label, times_us in samples_us.items()
    }
    return {
        "rows": rows,
        "failures": failures,
        **({"torch": ""} if problem else _torch_facts()),
        "planned_with": session.calibrated.name if session.calibrated else "shipped or public figures",
        "rounds": rounds.count,
        "captured": sides.captures,
    }


def _zoo(session: Session) -> tuple[Mapping[str, "Entry"], str]:
    """Import PyTorch and its models, or say why it takes no turns: then our graphs do."""
    try:
        import torch

        from benchmarks.zoo.export import ZOO
    except ImportError as error:
        return {}, f"PyTorch and onnxscript are needed: {error}"
    if not session.on_cpu and not torch.cuda.is_available():
        return {}, "PyTorch finds no GPU here"
    return ZOO, ""


def _torch_facts() -> dict[str, Any]:
    import torch

    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "tf32": {"convolutions": cudnn.allow_tf32, "products": matmul.allow_tf32},
    }


def settled(feeds: Feeds) -> Feeds:
    """Give scalars that steer the step the values of training."""
    settings = {"lr": LR, "loss_scale": LOSS_SCALE}
    return {n: np.asarray(settings.get(n, value), value.dtype) for n, value in feeds.items()}


@contextmanager
def _failing_into(failures: dict[str, str], label: str) -> Iterator[None]:
    """Put on record what does not fit on the device; the others go on."""
    try:
        yield
    except (CampoError, MemoryError, RuntimeError) as error:
        failures[label] = (str(error).splitlines() or [type(error).__name__])[0]


def _our_step(
    member: Candidate, buffers: Buffers, sides: Sides, session: Session
) -> tuple[float, Callable[[], None]]:
    graph = Graph(name=member.labels[0], imported=member.imported)
    step, _ = open_step(graph, buffers, session.bench.machine, cuda_graph=sides.captures)
    step()
    return float(buffers.outputs["loss"].read()), step


def _interval(interval: Any) -> dict[str, float] | None:
    return None if interval is None else asdict(interval)


def _ahead_us(steps_ahead: Callable[[], None]) -> float:
    """Time of one of many steps that are waited for together, in microseconds."""
    began = time.perf_counter()
    steps_ahead()
    return (time.perf_counter() - began) * 1e6 / _AHEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class _EagerStep:
    """A training step of PyTorch: forward, loss, backward, update."""

    module: "torch.nn.Module"
    loss: Callable[..., "torch.Tensor"]
    inputs: tuple["torch.Tensor", ...]
    targets: tuple["torch.Tensor", ...]
    optimizer: "torch.optim.Optimizer"
    scaler: "torch.amp.GradScaler"
    low: "torch.dtype | None"

    @classmethod
    def make(cls, entry: "Entry", feeds: Feeds, processor: str, form: Form) -> "_EagerStep":
        import torch

        device = torch.device(processor)
        with device:
            module = entry.build()
        _load(module, feeds)
        on_device = [torch.from_numpy(np.array(v)).to(device) for v in _batch(feeds)]
        if form.is_channels_last:
            images = torch.channels_last
            module = module.to(memory_format=images)
            on_device = [v.to(memory_format=images) if v.dim() == 4 else v for v in on_device]
        count = sum(name.startswith("input") for name in feeds)
        inputs, targets = tuple(on_device[:count]), tuple(on_device[count:])
        trained = [p for p in module.parameters() if p.requires_grad]
        makers: Mapping[str, Callable[[], torch.optim.Optimizer]] = {
            "momentum": lambda: torch.optim.SGD(trained, LR, momentum=0.9),
            "adam": lambda: torch.optim.Adam(trained, LR),
            "adamw": lambda: torch.optim.AdamW(trained, LR),
        }
        if form.is_compiled:
            module = torch.compile(module)
        return cls(
            module=module,
            loss=entry.loss,
            inputs=inputs,
            targets=targets,
            optimizer=makers[entry.optimizer](),
            scaler=torch.amp.GradScaler(device.type, enabled=form.low == "float16"),
            low=None if form.low is None else getattr(torch, form.low),
        )

    def step_and_wait(self) -> None:
        """Run one step and wait for its end, as the sessions of ONNX Runtime do."""
        try:
            self._step()
            self._wait()
        except RuntimeError as error:  # out of memory, above all
            raise MemoryError(str(error)) from None

    def steps_ahead(self) -> None:
        """Run many steps and wait for the last."""
        for _ in range(_AHEAD):
            self._step()
        self._wait()

    def loss_of_step(self) -> float:
        """Run one step and read its loss."""
        return float(self._step().detach())

    def _step(self) -> "torch.Tensor":
        import torch

        self.optimizer.zero_grad()
        with torch.autocast(self.inputs[0].device.type, dtype=self.low, enabled=self.low is not None):
            loss = self.loss(self.module(*self.inputs), *self.targets)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def _wait(self) -> None:
        import torch

        if self.inputs[0].is_cuda:
            torch.cuda.synchronize()


def _load(module: "torch.nn.Module", feeds: Feeds) -> None:
    """Give a module the graph's parameters and buffers."""
    import torch

    with torch.no_grad():
        for prefix, tensors in (("param", module.named_parameters()), ("buf", module.named_buffers())):
            for name, tensor in tensors:
                if (value := feeds.get(f"{prefix}.{name}")) is not None:
                    tensor.copy_(torch.from_numpy(np.array(value)))


def _batch(feeds: Feeds) -> list[np.ndarray]:
    return [v for kind in ("input.", "target.") for name, v in feeds.items() if name.startswith(kind)]
