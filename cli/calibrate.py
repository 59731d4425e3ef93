"""``campo-onnx calibrate``: fit a cost model of this machine."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from .completion import AUTO, complete_calibrated
from .evidence import telling_what_is_kept
from .options import (
    DECISION,
    MEASURE,
    CountersOption,
    DimOption,
    ForceOption,
    MachineArguments,
    PrecisionOption,
    PrintArguments,
    StoreOption,
    Use,
    check_alone,
    dimensions,
    low_precision,
    option,
)
from .outputs import check_outputs
from .render.console import print_json, print_note, progressing
from .render.costs import print_calibration
from .render.table import TableFormat
from .signature import with_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from campo_onnx.calibrate.run import Workload
    from campo_onnx.measure.store import Execution
    from campo_onnx.ops.precision import Precision
    from campo_onnx.ops.signature import Signature
    from campo_onnx.runtime.machine import Machine


@with_options
def calibrate(
    output: Annotated[
        Path | None,
        option(
            None,
            "-o",
            "--output",
            metavar="FILE.json",
            help="Where to write the calibration. By default in your data folder, where `--costs auto` and "
            "`--costs model` find it; pass a file from elsewhere as `--device FILE`.",
        ),
    ] = None,
    quick: Annotated[
        bool, option(DECISION, "--quick", help="Minutes instead of hours: fewer operators and shapes.")
    ] = False,
    ops: Annotated[
        str | None,
        option(
            DECISION,
            "--ops",
            metavar="OP,OP,...",
            autocompletion=complete_calibrated,
            help="Only these operators.",
        ),
    ] = None,
    shapes: Annotated[
        int | None,
        option(
            DECISION,
            metavar="N",
            min=9,
            help="Shapes per operator; by default 40 with --quick and 400 without. On a CPU three times as "
            "many of products and convolutions. A third is held out for testing.",
        ),
    ] = None,
    nodes_of: Annotated[
        list[Path] | None,
        option(
            DECISION,
            "--nodes-of",
            metavar="GRAPH.onnx",
            help="Also on the nodes of this FP32 step, in the form that runs here; may be repeated. Its "
            "largest nodes decide its time, and shapes that are drawn seldom are as large.",
        ),
    ] = None,
    dim: DimOption = None,
    precision: PrecisionOption = None,
    *,
    place: MachineArguments,
    cuda_graph: Annotated[
        bool, option(MEASURE, "--cuda-graph", help="Time nodes inside captured CUDA graphs.")
    ] = False,
    again: Annotated[
        bool,
        option(
            MEASURE,
            "--again",
            help="Take the timings that are there once more, and keep the shorter one of each: other "
            "programs, and other guests of the same host, only ever make a node slower.",
        ),
    ] = False,
    counters: CountersOption = Use.AUTO,
    store: StoreOption = None,
    cluster: Annotated[
        str,
        option(
            MEASURE,
            "--cluster",
            metavar="ADDRESS",
            help="Time on all GPUs of a Ray cluster, and write a calibration for each kind of device: "
            "HOST:PORT, `auto` for the cluster that runs here, or `local` for all GPUs of this machine.",
        ),
    ] = "",
    from_store: Annotated[
        Path | None,
        option(
            MEASURE,
            "--from-store",
            metavar="FILE",
            help="Fit from the timings in FILE alone, which another machine measured (`timings.sqlite`), and "
            "say what is missing. Measures nothing.",
        ),
    ] = None,
    printing: PrintArguments,
    force: ForceOption = False,
) -> None:
    """Fit a cost model of this machine.

    Casts and operators are timed on shapes of real networks in FP32 and in the low precision. A model per
    operator predicts the second time from the first and is tested on held-out shapes. Every timing is kept,
    so that a calibration that Ctrl-C stopped (exit code 130) continues where it was.

    Example: `campo-onnx calibrate --quick`
    """
    from campo_onnx.calibrate.catalog import file_name, make_folder, user_folder
    from campo_onnx.calibrate.run import calibrate as run_calibration
    from campo_onnx.errors import UsageError
    from campo_onnx.files import write_text
    from campo_onnx.measure.counters import counters_of
    from campo_onnx.measure.node_timer import NodeTimer
    from campo_onnx.measure.store import Execution, Store, default_path, now
    from campo_onnx.targets.detect import target_of

    printing.apply()
    if cluster:
        others = {
            "--output": output, "--from-store": from_store, "--again": again, "--nodes-of": nodes_of,
            "--dim": dim, "--json": printing.json,
        }  # fmt: skip
        check_alone("--cluster", others)
        _on_cluster(
            cluster, place, low_precision(precision, AUTO),
            Execution.GRAPH if cuda_graph else Execution.STREAM,
            partial(_workload, quick=quick, ops=ops, shapes=shapes), store or default_path(), printing.form,
            force=force,
        )  # fmt: skip
        return
    if from_store is not None:
        check_alone("--from-store", {"--again": again}, why="the one measures, the other does not")
    low = low_precision(precision, place.runtime)
    stores = {"--from-store": from_store, "--store": store or default_path()}
    if output is not None:
        check_outputs({"--output": output}, stores, force=force)
    here = place.machine if from_store is None else _machine_in(from_store, place)
    if cuda_graph and not here.is_gpu:
        raise UsageError("--cuda-graph needs the CUDA provider", remedy="Leave it out on a CPU.")
    target = target_of(here)
    execution = Execution.GRAPH if cuda_graph else Execution.STREAM
    if output is None:
        make_folder(user_folder())
        output = user_folder() / file_name(target, low, execution)
        check_outputs({"--output": output}, stores, force=force)
    workload = _workload(here.provider, quick=quick, ops=ops, shapes=shapes)
    workload = replace(workload, of_steps=tuple(_nodes(nodes_of or (), here, low, dimensions(dim))))
    with Store(from_store or store or default_path()) as timings, telling_what_is_kept(timings):
        print_note(timings.notice)
        with progressing(f"calibrating {here.device} ({here.provider})") as advance:
            only_stored = from_store is not None
            timer = NodeTimer(
                machine=here,
                store=timings,
                execution=execution,
                only_stored=only_stored,
                again_before=now() if again else "",
            )
            with_counters = counters is Use.AUTO and here.is_gpu and not only_stored
            calibration = run_calibration(
                workload, timer, target, low, advance, counters_of if with_counters else None
            )
    write_text(calibration.to_json(), output)
    if printing.json:
        print_json(calibration.to_json())
    else:
        print_calibration(calibration, output, printing.form)


def _nodes(
    graphs: "Iterable[Path]", here: "Machine", low: "Precision", dims: "Mapping[str, int]"
) -> "Iterator[Signature]":
    """Give the nodes of steps as they run on a machine."""
    from campo_onnx.ir.importer import import_model
    from campo_onnx.lowering.place import Place
    from campo_onnx.lowering.sequence import as_it_runs
    from campo_onnx.measure.one_node import step_samples

    for path in graphs:
        yield from step_samples(as_it_runs(import_model(path, dims), Place.on(here), dims).view, low)


def _workload(provider: str, *, quick: bool, ops: str | None, shapes: int | None) -> "Workload":
    """Choose what to measure."""
    from campo_onnx.calibrate.run import FULL, QUICK

    workload = (QUICK if quick else FULL)[provider]
    if ops is not None:
        workload = replace(workload, ops=tuple(op.strip() for op in ops.split(",") if op.strip()))
    if shapes is not None:
        sampling = replace(workload.sampling, count=shapes)
        workload = replace(workload, sampling=sampling, casts=min(workload.casts, shapes))
    return workload


def _on_cluster(
    address: str,
    place: MachineArguments,
    precision: "Precision",
    execution: "Execution",
    workload_of: "Callable[[str], Workload]",
    store: Path,
    form: TableFormat,
    *,
    force: bool,
) -> None:
    """Time on a cluster into one store, and fit each kind of device from it."""
    from campo_onnx.calibrate.campaign import campaign, kinds_in
    from campo_onnx.calibrate.catalog import file_name, make_folder, user_folder
    from campo_onnx.calibrate.run import calibrate as run_calibration
    from campo_onnx.files import write_text
    from campo_onnx.ir.exporter import check_destination
    from campo_onnx.measure.node_timer import NodeTimer
    from campo_onnx.measure.store import Store
    from campo_onnx.scale.cluster import RayPool
    from campo_onnx.targets.detect import target_of

    make_folder(user_folder())
    with Store(store) as timings:
        print_note(timings.notice)
        with RayPool(address) as pool:
            kinds = kinds_in(pool, place.device, place.threads)
            places = {}
            for kind in kinds:
                name = file_name(target_of(kind.machine), precision, execution)
                places[kind.machine] = user_folder() / name
                check_destination(places[kind.machine], force=force)
            with progressing(f"calibrating {len(kinds)} kinds of devices") as advance:
                failures = campaign(
                    kinds,
                    workload_of,
                    pool,
                    timings,
                    precision=precision,
                    execution=execution,
                    advance=advance,
                )
        for failure in failures:
            print_note(failure)
        for machine, output in places.items():
            timer = NodeTimer(machine=machine, store=timings, execution=execution, only_stored=True)
            calibration = run_calibration(workload_of(machine.provider), timer, target_of(machine), precision)
            write_text(calibration.to_json(), output)
            print_calibration(calibration, output, form)


def _machine_in(store: Path, place: MachineArguments) -> "Machine":
    """Find the machine whose timings a store holds; of several, the one with most."""
    from campo_onnx.errors import ProfileError
    from campo_onnx.files import check_file
    from campo_onnx.measure.store import Store

    remedy = "Name the timings.sqlite of the machine that measured."
    check_file(store, title=f"the store {store}", remedy=remedy)
    with Store(store) as timings:
        counts = {
            one: n
            for one, n in timings.machines().items()
            if place.device in ("auto", one.provider) and place.runtime in ("auto", one.runtime)
        }
    if not counts:
        raise ProfileError(
            f"{store} holds no timings{'' if place.device == 'auto' else f' of the {place.device} provider'}",
            remedy="Measure there first, with `campo-onnx calibrate`.",
        )
    chosen = next(iter(counts))
    print_note(
        f"{counts[chosen]} timings of {chosen.device} ({chosen.provider}, driver {chosen.driver or 'none'}, "
        f"{chosen.software})."
    )
    if len(counts) > 1:
        print_note(
            f"{store} holds timings of {len(counts)} machines; the one with the most is used. "
            "Choose with --device."
        )
    return chosen
