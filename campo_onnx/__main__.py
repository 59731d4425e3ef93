"""``python -m campo_onnx``: the command line where its script is not on the path.

It works in a source tree that is not installed, too, as on a machine without a package index.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points


def command() -> Callable[[], None]:
    """Find what the script ``campo-onnx`` calls: as installed, else in the source tree."""
    for script in entry_points(group="console_scripts", name="campo-onnx"):
        return script.load()  # type: ignore[no-any-return]
    return import_module("cli.start").run  # type: ignore[no-any-return]


if __name__ == "__main__":
    command()()
