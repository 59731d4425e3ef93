"""Evidence for ``optimize`` and ``compare``: the device, and the sources of its costs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from campo_onnx.costs.evidence import CHOICES, CostSource
from campo_onnx.errors import UsageError, did_you_mean

from .completion import AUTO
from .options import COSTS, DeviceOption, RuntimeOption, StoreOption, option
from .render.console import print_note, print_warning, progressing

if TYPE_CHECKING:
    from campo_onnx.calibrate.calibration import Calibration
    from campo_onnx.costs.evidence import Evidence
    from campo_onnx.ir.flat_weights import FlatWeights
    from campo_onnx.ir.view import GraphView
    from campo_onnx.measure.store import Store
    from campo_onnx.targets.target import Target

CALIBRATION_SUFFIX = ".json"


def _cost_source(text: str) -> CostSource:
    if text not in CHOICES:
        raise UsageError(f"unknown source of costs {text!r}", remedy=did_you_mean(text, CHOICES))
    return CostSource(text)


CostsOption = Annotated[
    CostSource,
    option(
        COSTS,
        "--costs",
        metavar="SOURCE",
        parser=_cost_source,
        help="Where costs come from. `datasheet`: estimated from public figures. `model`: predicted by a "
        "calibration of the device. `measure`: every distinct node is timed on this machine, in both "
        "precisions. `auto`: a calibration if there is one, else `measure` if this machine has the device, "
        "else `datasheet`.",
    ),
]


class Running(StrEnum):
    """Execution mode of the step."""

    STREAM = "stream"
    GRAPH = "graph"


ExecutionOption = Annotated[
    Running,
    option(
        COSTS,
        "--execution",
        help="How the step will run: its kernels launched one after another, or captured as a CUDA graph, "
        "where a launch costs less (an assumption; a calibration made with --cuda-graph knows it).",
    ),
]
FlatWeightsOption = Annotated[
    bool,
    option(
        COSTS,
        "--flat-weights",
        help="The step will run in a training session that updates the weights itself: they lie in one "
        "buffer, and where most are read in FP16, one Cast makes all of them.",
    ),
]
ProfileOption = Annotated[
    Path | None,
    option(
        COSTS,
        "--profile",
        metavar="FILE.parquet",
        help="For --costs model: FP32 times of this graph, written by `campo-onnx profile`.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The target to plan for, and what costs are based on."""

    target: "Target"
    evidence: "Evidence"
    costs: CostSource


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetArguments:
    """Options that say where the step will run, and where its costs come from."""

    device: DeviceOption = "auto"
    runtime: RuntimeOption = "auto"
    costs: CostsOption = CostSource.AUTO
    execution: ExecutionOption = Running.STREAM
    flat_weights: FlatWeightsOption = False
    profile: ProfileOption = None
    store: StoreOption = None

    @property
    def files(self) -> dict[str, Path | str | None]:
        """Files to read, by option: names that are files, or may be."""
        return {"--device": self.device, "--profile": self.profile, "--store": self.store}

    def check(self) -> None:
        """Find out before any work whether there is such a device, or calibration file, and runtime."""
        from campo_onnx.files import check_file
        from campo_onnx.runtime.registry import runtime_called
        from campo_onnx.targets.target import target

        runtime_called(self.runtime)
        if self.device.endswith(CALIBRATION_SUFFIX):
            title = f"the calibration {self.device}"
            check_file(Path(self.device), title=title, remedy="Check the path of --device.")
        elif self.device != AUTO:
            target(self.device)


def flat_weights_finder(wanted: bool) -> "Callable[[GraphView], FlatWeights] | None":
    """Say how weights that lie in one buffer are found, where they do."""
    if not wanted:
        return None
    from campo_onnx.training.low_weights import flat_weights

    return flat_weights


@contextmanager
def opened_target(chosen: TargetArguments) -> Iterator[Basis]:
    """Find the device (a name, ``auto``, or a calibration file) and open the files that costs come from."""
    from campo_onnx.costs.evidence import Evidence
    from campo_onnx.runtime.gpu import visible_gpu
    from campo_onnx.runtime.machine import CPU
    from campo_onnx.runtime.registry import runtime_called
    from campo_onnx.targets.detect import resolve_target

    device, runtime, costs = chosen.device, chosen.runtime, chosen.costs
    profile, store, execution = chosen.profile, chosen.store, chosen.execution
    if profile is not None and costs in (CostSource.DATASHEET, CostSource.MEASURE):
        raise UsageError(
            f"--profile cannot be combined with --costs {costs.value}",
            why="only a calibration predicts FP16 times from the FP32 times of a profile",
            remedy="Leave --profile out, or use --costs model.",
        )
    calibration = _calibration(device, runtime) if device.endswith(CALIBRATION_SUFFIX) else None
    target, note = resolve_target(device, runtime) if calibration is None else (calibration.target, "")
    if calibration is None and execution is Running.GRAPH:
        costs = _of_captured(costs)
    if calibration is None and costs is CostSource.AUTO and (why := runtime_called(runtime).problem(CPU)):
        print_note(f"{why}, so costs are estimated from public figures.")
        costs = CostSource.DATASHEET
    print_note(note)
    if calibration is None and execution is Running.GRAPH:
        target = _captured(target)
    read = None
    if profile is not None:
        from campo_onnx.measure.profile import read_profile

        read = read_profile(profile)
    is_known = calibration is not None or costs in (CostSource.DATASHEET, CostSource.MODEL)
    if is_known or (target.hardware.is_gpu and visible_gpu().gpu is None):
        yield Basis(target=target, evidence=Evidence(calibration=calibration, profile=read), costs=costs)
        return
    from campo_onnx.measure.store import Store, default_path

    with (
        Store(store or default_path(), saves_time=store is None) as timings,
        telling_what_is_kept(timings),
        progressing("measuring distinct nodes") as advance,
    ):
        print_note(timings.notice)
        evidence = Evidence(profile=read, store=timings, on_progress=advance)
        yield Basis(target=target, evidence=evidence, costs=costs)


@contextmanager
def telling_what_is_kept(timings: "Store") -> Iterator[None]:
    """Tell on Ctrl-C what the store has from this run: the next one goes on from there."""
    try:
        yield
    except KeyboardInterrupt:
        if timings.written and timings.path is not None:
            print_note(
                f"{timings.written} timings are kept in {timings.path}: the same command goes on from there."
            )
        raise


def _calibration(file: str, runtime: str) -> "Calibration":
    """Read a calibration file of a runtime, and say what speaks against it."""
    from campo_onnx.calibrate.calibration import load_calibration
    from campo_onnx.runtime.machine import CPU
    from campo_onnx.runtime.registry import runtime_called

    calibration = load_calibration(Path(file))
    machine = calibration.machine
    if runtime not in (AUTO, machine.runtime):
        raise UsageError(
            f"{file} is of {machine.runtime}",
            why=f"costs are wanted for {runtime}",
            remedy="Leave --runtime out, or pass a calibration of that runtime.",
        )
    here = runtime_called(machine.runtime)
    if not here.problem(CPU) and (now := here.version) != machine.ort:
        print_note(f"{file} was made with {machine.software}, and this is {now}: times may differ.")
    if why := calibration.doubt:
        print_warning(f"{file}: {why}.")
    return calibration


def _of_captured(costs: CostSource) -> CostSource:
    if costs not in (CostSource.AUTO, CostSource.DATASHEET):
        raise UsageError(
            f"--execution graph cannot be combined with --costs {costs.value}",
            why="timings and calibrations that are found by name are of kernels launched one after another",
            remedy="Leave --costs out, or pass a calibration made with --cuda-graph as --device FILE.",
        )
    return CostSource.DATASHEET


def _captured(target: "Target") -> "Target":
    if not target.can_capture:
        raise UsageError("--execution graph needs a GPU", why=f"{target.name} cannot capture CUDA graphs")
    captured = target.captured
    print_note(
        f"Planning for a captured CUDA graph: a launch counts {captured.launch_us:g} us instead of "
        f"{target.launch_us:g}. Let the runtime capture it (`bench --cuda-graph` does)."
    )
    return captured
