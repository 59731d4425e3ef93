"""Files that a command writes: checked together and before any work, so that nothing is lost."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from campo_onnx.errors import UsageError

Read = Path | str | Iterable[Path] | None
"""Kinds of values of an option: a file, files, or something that may be a file (a preset, a device)."""


def check_outputs(
    outputs: Mapping[str, Path | None],
    read: Mapping[str, Read],
    *,
    force: bool,
    source: Path | None = None,
    replaced: Iterable[str] = (),
) -> tuple[Path, ...]:
    """Find out before any work whether every output can be written, and that none destroys anything.

    `outputs`: path by option; None where the option was not passed.
    `read`: by option or argument: what the command reads, or keeps its results in. A file that does not exist
    yet counts as well: a store may be made there.
    `source`: the model, which the first output may replace if `force` says so.
    `replaced`: options whose file is replaced whatever `force` says: it is one of the command's own.
    """
    from campo_onnx.ir.exporter import check_destination

    targets = {option: path for option, path in outputs.items() if path is not None}
    taken = {path.resolve(): option for option, value in read.items() for path in _paths(value)}
    for number, (option, path) in enumerate(targets.items()):
        may_be_source = source if number == 0 else None
        check_destination(path, force=force or option in replaced, source=may_be_source)
        other = taken.setdefault(path.resolve(), option)
        # By name: whoever writes to a link to the model may not know that it is one.
        is_source = may_be_source is not None and os.path.abspath(path) == os.path.abspath(may_be_source)
        if other != option and not is_source:
            raise UsageError(
                f"{option} and {other} are the same file",
                why=str(path),
                remedy=f"Give {option} another name.",
            )
    return tuple(targets.values())


def _paths(value: Read) -> Iterable[Path]:
    if value is None:
        return ()
    return (Path(value),) if isinstance(value, Path | str) else value
