"""Write docs/commands.md, every command's help, out of the program itself.

    python docs/make_commands.py

Typer makes the page; terminal width and colour play no part in it.
"""

import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

PAGE = Path(__file__).parent / "commands.md"


def page() -> str:
    """Return the page for the commands as they are now."""
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    program = f"{script.module.partition('.')[0]}.main"
    typer = [sys.executable, "-m", "typer", program, "utils", "docs", "--name", script.name]
    text = subprocess.run([*typer, "--title", "Commands"], check=True, capture_output=True, text=True).stdout
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{stamp()}\n\n{rest.strip()}\n"


def stamp() -> str:
    """Say how the page was made; another Typer may write the same help in another way."""
    return f"<!-- by docs/make_commands.py with Typer {version('typer')}; edit the commands, not this -->"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
