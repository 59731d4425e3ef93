"""From a plan, a comparison or the verdicts of a check to one HTML file.

The page loads nothing: styles and scripts are in it and allowed by their digests, pictures are data. What
strangers wrote (names of nodes, tensors, files) is escaped by the template library, or lies in the page as
JSON that its scripts show as text.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from campo_onnx.errors import UsageError
from campo_onnx.version import VERSION
from campo_onnx.wording import duration, gigabytes, visible

if TYPE_CHECKING:
    from jinja2 import Environment

SCRIPTS = ("data.js", "table.js", "decisions.js", "map.js", "page.js")
"""In the order in which they run."""

NEEDED = ("jinja2", "matplotlib")
"""Packages that a report needs."""


def check_report(path: Path | None) -> None:
    """Find out before any work whether a report can be made; None if there will be none."""
    if path is None:
        return
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--report {path}: a report is an HTML file", remedy="End the name with .html.")
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        raise UsageError(
            f"--report needs {' and '.join(missing)}, which {'are' if missing[1:] else 'is'} not installed",
            remedy="Install what it needs with: pip install 'campo-onnx[report]'",
        )


def render(
    template: str,
    title: str,
    values: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
    *,
    notes: Sequence[str] = (),
    command: str = "",
) -> str:
    """Write a page as one HTML text; the same page is always the same text.

    `values` is what the template reads, by name, and `data` what its scripts read; None for a page without
    any.
    """
    from jinja2.utils import htmlsafe_json_dumps

    environment = _environment()
    style = _own("style.css")
    script = "\n".join(_own(name) for name in SCRIPTS) if data is not None else ""
    held = "" if data is None else htmlsafe_json_dumps(data, **_JSON)
    return environment.get_template(template).render(
        title=title,
        notes=notes,
        command=command,
        style=style,
        script=script,
        policy=_policy(style, script),
        data=held,
        counts_bytes=data is not None and "bytes" in data,
        version=VERSION,
        **values,
    )


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Fill a template that is a part of a page, without style and scripts: a notebook has its own."""
    return _environment().get_template(template).render(**values)


_JSON: Mapping[str, Any] = {"separators": (",", ":"), "allow_nan": False, "sort_keys": False}


def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("campo_onnx.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": duration,
        "gigabytes": gigabytes,
        "percent": lambda share: f"{share:.1%}",
        "count": lambda number: f"{number:,}",
        "visible": visible,
    }
    return environment


def _own(name: str) -> str:
    return files("campo_onnx.report").joinpath("templates", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Allow this style and this script, pictures that are data, and nothing else."""
    scripts = f"'sha256-{_digest(script)}'" if script else "'none'"
    return (
        f"default-src 'none'; style-src 'sha256-{_digest(style)}'; script-src {scripts}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
