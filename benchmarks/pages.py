"""Pages of results: JSON and a template give Markdown. Text stands in the templates, figures in the JSON.

    python -m benchmarks.pages [CLAIM ...]

writes the pages anew whose JSON is in ``results/``.
"""

import argparse
import contextlib
import json
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from campo_onnx.errors import UsageError
from campo_onnx.files import write_text

RESULTS = Path(__file__).parent / "results"
TEMPLATES = Path(__file__).parent / "templates"
STUB = "-stub"
"""The end of the driver's version on the stubs of tests/cuda."""

_PROJECT = Path(__file__).parent.parent / "pyproject.toml"
_LONGEST = 160
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-training-cpu")


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Begin a command line whose help is the docstring of its script, line by line."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def provenance(*packages: str) -> dict[str, Any]:
    """When and with which versions results were made."""
    # The checkout's: what an editable install once recorded as its version grows old.
    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
    versions = {"campo-onnx": project["version"]}
    for package in ("onnx", *_RUNTIMES, *packages):
        with contextlib.suppress(PackageNotFoundError):
            versions["onnxruntime" if package in _RUNTIMES else package] = version(package)
    return {"date": date.today().isoformat(), "versions": versions}


def commit(*folders: str) -> str:
    """Name the last commit that changed some folders, with a + where they differ from it; "" without git.

    Results of different commits do not belong on one page.
    """

    def git(*command: str) -> str:
        words = ["git", *command, "--", *folders]
        return subprocess.run(
            words, cwd=_PROJECT.parent, capture_output=True, text=True, check=False
        ).stdout.strip()

    return git("log", "-1", "--format=%h") + ("+" if git("status", "--porcelain") else "")


def number(value: float | None, form: str = ".2f", none: str = "-") -> str:
    """Write a number, or a dash where there is none."""
    return none if value is None else format(value, form)


def interval(value: Mapping[str, float] | None, form: str = ".2f", scale: float = 1.0, unit: str = "") -> str:
    """Write a median and its interval.

    Examples
    --------
    >>> interval({"median": 2000.0, "low": 1900.0, "high": 2100.0}, ".1f", 1e-3, " ms")
    '2.0 ms (1.9 to 2.1)'
    """
    if value is None:
        return "-"
    median, low, high = (format(value[key] * scale, form) for key in ("median", "low", "high"))
    return f"{median}{unit} ({low} to {high})"


def cell(text: object) -> str:
    """Shorten a message so that it fits a cell of a table."""
    line = str(text).replace("|", "/").replace("\n", " ")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def cpu_of(machine: Mapping[str, Any]) -> str:
    """Name a machine's CPU, with its device file where one tells more than the processor says of itself.

    Examples
    --------
    >>> cpu_of({"cpu": "AMD EPYC", "device": "zen5"}), cpu_of({"cpu": "AMD EPYC"})
    ('AMD EPYC, zen5', 'AMD EPYC')
    """
    return f"{machine['cpu']}, {machine['device']}" if "device" in machine else machine["cpu"]


def head(columns: Sequence[str], left: int = 1) -> str:
    """Begin a table whose first `left` columns hold text, and the others figures.

    Examples
    --------
    >>> print(head(["model", "x"]))
    | model | x |
    |---|--:|
    """
    rule = "|" + "|".join(["---"] * min(left, len(columns)) + ["--:"] * (len(columns) - left)) + "|"
    return f"| {' | '.join(columns)} |\n{rule}"


def line(cells: Sequence[object]) -> str:
    """Write one line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def results(claim: str) -> dict[str, Any]:
    """Read the committed results of a claim: pages cite each other's figures by this, and copy none."""
    data: dict[str, Any] = json.loads((RESULTS / f"{claim}.json").read_text(encoding="utf-8"))
    return data


def render(claim: str, data: Mapping[str, Any]) -> str:
    """Fill the template of a claim; anything that it misses in the data is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"number": number, "interval": interval, "cell": cell, "cpu_of": cpu_of}
    environment.globals |= {"head": head, "line": line, "results": results}
    page = environment.get_template(f"{claim}.md.j2").render(**data)
    note = data.get("transcribed")
    return f"{page}\nNot measured again; the figures in the JSON are transcribed: {note}.\n" if note else page


def refuse_stub(data: object, folder: Path) -> None:
    """Keep what ran on the stubs of tests/cuda out of the results: nothing of it is a measurement."""
    if folder.resolve() == RESULTS.resolve() and _names_stub(data):
        raise UsageError(
            "this ran on stubs of CUDA and is no measurement",
            remedy="Keep it in another folder, with --work.",
        )


def _names_stub(data: object) -> bool:
    if isinstance(data, Mapping):
        driver = data.get("driver")
        return (isinstance(driver, str) and STUB in driver) or any(map(_names_stub, data.values()))
    return isinstance(data, list | tuple) and any(map(_names_stub, data))


def without_folders(text: str) -> str:
    """Leave out where packages are installed: a message names a file by the package that it belongs to.

    Examples
    --------
    >>> without_folders("/home/me/.venv/lib/python3.11/site-packages/timm/models/vit.py:3 checks the data")
    'timm/models/vit.py:3 checks the data'
    """
    return re.sub(r"/[^\s\"']*/site-packages/", "", text)


def publish(
    claim: str, data: Mapping[str, Any], folder: Path = RESULTS, *, name: str | None = None
) -> tuple[Path, ...]:
    """Write the results of a claim, and its page, if Jinja is installed; give what was written."""
    refuse_stub(data, folder)
    folder.mkdir(parents=True, exist_ok=True)
    # The last digits of a sum may differ from run to run.
    rounded = json.loads(json.dumps(data), parse_float=lambda digits: float(f"{float(digits):.9g}"))
    text = without_folders(json.dumps(rounded, indent=1)) + "\n"
    figures, page = (folder / f"{name or claim}.{ending}" for ending in ("json", "md"))
    if find_spec("jinja2") is None:  # a lent machine may lack it: the page is made from the JSON elsewhere
        write_text(text, figures)
        return (figures,)
    written = render(claim, json.loads(text))
    write_text(text, figures)
    write_text(written, page)
    return figures, page


def main(argv: Sequence[str] | None = None) -> None:
    """Write pages anew."""
    parser = arguments(__doc__)
    claims = sorted(path.stem for path in RESULTS.glob("*.json"))
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help=f"one of {', '.join(claims)}; all of them")
    for name in parser.parse_args(argv).claims or claims:
        data = results(name)
        refuse_stub(data, RESULTS)
        page = RESULTS / f"{name}.md"
        write_text(render(data.get("template", name), data), page)
        print(page)


if __name__ == "__main__":
    main()
