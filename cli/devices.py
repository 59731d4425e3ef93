"""``campo-onnx devices``: what can be planned for, and how well it is known."""

import json as json_format
from typing import Annotated

import typer

from .render.console import print_json
from .render.costs import print_devices


def devices(
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the devices a graph can be planned for, with where their figures come from."""
    from dataclasses import asdict

    from campo_onnx.calibrate.datasheet import devices as known

    if json:
        rows = [asdict(device) | {"kind": device.kind.value} for device in known().values()]
        print_json(json_format.dumps(rows, indent=1) + "\n")
    else:
        print_devices(tuple(known().values()))
