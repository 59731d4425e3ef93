"""``campo-onnx demo``: the shipped example, from the FP32 step to the mixed one."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from .optimize import default_output, optimize
from .options import OUTPUT, DeviceOption, ForceOption
from .render.console import print_line

EXAMPLE = "bert_layer.onnx"


def demo(
    folder: Annotated[
        Path,
        typer.Option("--folder", metavar="FOLDER", help="Where to write its files.", rich_help_panel=OUTPUT),
    ] = Path("campo_demo"),
    device: DeviceOption = "v100",
    force: ForceOption = False,
) -> None:
    """Optimize an example that comes with the program: a training step of one BERT layer.

    Needs no GPU, no network and no ONNX Runtime: times are estimated from public figures of the device.

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
    print_line("Next:")
    for command in (
        f"campo-onnx explain {plan} intermediate/Gemm",
        f"campo-onnx compare {model} --device {device}",
        f"campo-onnx check {mixed} --against {model}",
    ):
        print_line(f"  {command}")
