"""``campo-onnx demo``: the shipped example, from the FP32 step to the mixed one."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

from .optimize import default_output, optimize
from .options import OUTPUT, DeviceOption, ForceOption, option
from .render.bench import print_verification
from .render.console import print_line, print_note
from .verification import verified

EXAMPLE = "bert_layer.onnx"
PREDICTED = "v100"
STEPS = 8
BUDGET_S = 30.0  # a step takes about a second


def demo(
    folder: Annotated[
        Path, option(OUTPUT, "--folder", metavar="FOLDER", help="Where to write its files.")
    ] = Path("campo_demo"),
    device: DeviceOption = PREDICTED,
    force: ForceOption = False,
) -> None:
    """Optimize a BERT layer that comes with the program.

    Needs no GPU, no network and no ONNX Runtime: times are estimated from public figures of the device. On a
    CPU with BF16 units and OpenVINO the step is also planned for this machine, and measured before and after.

    Example: `campo-onnx demo`
    """
    from campo_onnx.costs.evidence import CostSource
    from campo_onnx.files import make_folder, replacing
    from campo_onnx.ir.exporter import check_destination

    make_folder(folder, remedy="Name another with --folder.")
    model, plan = folder / EXAMPLE, folder / "plan.json"
    mixed = default_output(model)
    for path in (model, mixed, plan):
        check_destination(path, force=force)
    shipped = files(__package__).joinpath("data", EXAMPLE).read_bytes()
    was_there = model.exists()
    with replacing(model) as path:
        path.write_bytes(shipped)
    try:
        optimize(model, output=mixed, device=device, costs=CostSource.DATASHEET, plan=plan, force=True)
    except BaseException:  # an example without its result is of no use
        if not was_there:
            model.unlink()
        raise
    if device == PREDICTED:
        measure_here(model)
    print_line("Next:")
    for command in (
        f"campo-onnx explain {plan} intermediate/Gemm",
        f"campo-onnx compare {model} --device {device}",
        f"campo-onnx check {mixed} --against {model}",
    ):
        print_line(f"  {command}")


def measure_here(model: Path) -> None:
    """Plan the example for this machine's CPU and measure it, where a runtime has low precision there."""
    from campo_onnx.errors import CampoError
    from campo_onnx.optimize.lists.oplists import preset
    from campo_onnx.planning.options import Options
    from campo_onnx.planning.pipeline import optimize as plan
    from campo_onnx.runtime.registry import default_precision
    from campo_onnx.targets.detect import cpu_with_low_precision

    here = cpu_with_low_precision()
    if here is None:
        return
    low = default_precision(here.runtime.name)
    print_note(f"This machine ({here.name}) computes in {low.name} with {here.runtime.name}: measured here.")
    try:
        options = Options(target=here, lists=preset("campo"), low=low)
        optimized = plan(model, options)
        print_verification(
            verified(optimized, options, feeds=None, repair=False, steps=STEPS, budget_s=BUDGET_S)
        )
    except CampoError as error:  # the example itself is written
        print_note(str(error))
