"""Links of the site that lead out of docs/: what they point to is brought along.

Pages are read in the repository as well, where ``../benchmarks/results/accuracy.md`` is right. On the site
such a file lies under ``repository/``, as a page if it is Markdown; its own links are treated alike.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
REPOSITORY = "repository"
_LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)#:\s]+)(?P<after>(?:#[^)]*)?\))")


def _targets(text: str, page: Path) -> Iterator[Path]:
    for match in _LINK.finditer(text):
        target = Path(os.path.normpath(page.parent / match["target"]))
        if target.is_file() and ROOT in target.parents and DOCS not in target.parents:
            yield target


def on_files(files: Any, config: Any) -> Any:
    """Add the files that pages link to, and those that these link to."""
    pages = [Path(file.abs_src_path) for file in files if file.src_uri.endswith(".md")]
    added: dict[Path, None] = {}
    while pages:
        page = pages.pop()
        for target in _targets(page.read_text(encoding="utf-8"), page):
            if target not in added:
                added[target] = None
                if target.suffix == ".md":
                    pages.append(target)
    for path in added:
        uri = f"{REPOSITORY}/{path.relative_to(ROOT).as_posix()}"
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links into those of the site."""
    own = page.file.src_uri
    is_ours = own.startswith(f"{REPOSITORY}/")
    place = ROOT / own.removeprefix(f"{REPOSITORY}/") if is_ours else DOCS / own

    def moved(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(place.parent / match["target"]))
        if not target.is_file() or ROOT not in target.parents:
            return match[0]
        inside = DOCS in target.parents
        uri = (
            target.relative_to(DOCS).as_posix()
            if inside
            else f"{REPOSITORY}/{target.relative_to(ROOT).as_posix()}"
        )
        return f"{match['before']}{os.path.relpath(uri, os.path.dirname(own) or '.')}{match['after']}"

    return _LINK.sub(moved, markdown)
