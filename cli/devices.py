"""``campo-onnx devices``: the devices to plan for, and what is known about each."""

import os
from typing import Annotated

import typer

from .completion import complete_devices
from .options import FormatOption, JsonOption, StoreOption, check_one_form
from .render.console import print_json, print_note
from .render.devices import print_device, print_devices, print_machine
from .render.table import TableFormat


def devices(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Show this device in full: sources, assumptions, calibrations.",
            show_default=False,
            autocompletion=complete_devices,
        ),
    ] = None,
    store: StoreOption = None,
    form: FormatOption = TableFormat.TEXT,
    json: JsonOption = False,
) -> None:
    """List the devices to plan for, and this machine.

    `datasheet`: public figures and assumptions only. `calibrated`: cost models were fitted to
    measurements on the device, on this machine or before release. `measured`: single nodes were timed on
    the device on this machine.

    Example: `campo-onnx devices h200`
    """
    from campo_onnx.calibrate.knowledge import known_devices
    from campo_onnx.errors import ProfileError
    from campo_onnx.files import check_file
    from campo_onnx.files.document_format import to_report
    from campo_onnx.measure.store import Store, default_path
    from campo_onnx.targets.detect import this_machine
    from campo_onnx.targets.target import target

    check_one_form(json=json, form=form)
    wanted = target(name).name if name is not None else None
    path = store or default_path()
    timings = None
    if os.path.lexists(path):
        check_file(path, title=f"the store {path}", remedy="Name the file of `--store`.")
        try:
            timings = Store(path)
        except ProfileError as error:  # figures are worth showing all the same
            print_note(str(error))
    try:
        if timings is not None and timings.notice:
            print_note(timings.notice)
        facts = tuple(known_devices(timings))
    finally:
        if timings is not None:
            timings.close()
    if wanted is not None:
        facts = tuple(entry for entry in facts if entry.target.name == wanted)
    if json:
        document = {"machine": this_machine(), "devices": [entry.to_dict() for entry in facts]}
        print_json(to_report("campo-onnx devices", 1, document))
    elif wanted is not None:
        print_device(facts[0])
    else:
        print_devices(facts, form)
        if form is TableFormat.TEXT:
            print_machine(this_machine())
