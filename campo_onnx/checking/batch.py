"""Check a repository of graphs: one task a graph, on one process, several, or a cluster."""

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

from campo_onnx import errors
from campo_onnx.checking.check import check
from campo_onnx.checking.policy import Pair, Policy
from campo_onnx.checking.verdict import Verdicts
from campo_onnx.errors import CampoError, InternalError, OutOfMemoryError, UsageError, is_out_of_memory
from campo_onnx.files.codec import DecodeError, fingerprint, from_plain, to_plain
from campo_onnx.ir.importer import data_files_of
from campo_onnx.scale.local import LocalPool
from campo_onnx.scale.results import Results
from campo_onnx.scale.work import Outcome, Pool, Task, run
from campo_onnx.version import VERSION, source_digest

Row = dict[str, Any]

_FLOAT = "float"


def check_all(
    pairs: Sequence[Pair],
    advance: Callable[[int, int], None] = lambda done, total: None,
    *,
    pool: Pool | None = None,
    results: Results | None = None,
) -> tuple[Verdicts, ...]:
    """Check every graph of a policy; an error in one does not stop the others.

    By default this process is the `pool`; workers see the files under the same paths. With `results` verdicts
    are kept: a graph is checked again if anything in its files, or its limits, has changed.
    """
    keys = [f"{number}" if results is None else key_of(pair) for number, pair in enumerate(pairs)]
    for key in keys:
        if results is not None and key in results:
            _refuse_others(results[key], results.path)
    here = os.getcwd()
    tasks = [
        Task(key=key, function=check_pair, arguments=(pair, here))
        for key, pair in zip(keys, pairs, strict=True)
    ]
    outcomes = run(tasks, pool or LocalPool(), Results() if results is None else results, advance)
    return tuple(
        _failed(pair, outcomes[key]) if outcomes[key].failure else from_row(outcomes[key].value)
        for key, pair in zip(keys, pairs, strict=True)
    )


def _refuse_others(value: Any, path: Path | None) -> None:
    """Make sure that a kept result is one of a check, before anything is done that rests on it."""
    try:
        from_row(value)
    except (DecodeError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"the results {path} hold something else than verdicts",
            why=str(error),
            remedy="Name another file, or take it away.",
        ) from None


def pairs_in(mixed: Path, against: Path, policy: Policy) -> tuple[Pair, ...]:
    """Pair every mixed graph below a folder with the file of the same path below another."""
    for folder, other in ((mixed, against), (against, mixed)):
        if not os.path.isdir(folder):
            raise UsageError(
                f"{other} is a folder and {folder} is not", remedy="Give two files, or two folders."
            )
    names = sorted(path.relative_to(mixed) for path in mixed.rglob("*.onnx"))
    if not names:
        raise UsageError(
            f"there is no .onnx file below {mixed}", remedy="Name the folder of the mixed graphs."
        )
    return tuple(
        Pair(name=str(path), mixed=mixed / path, against=against / path, policy=policy) for path in names
    )


def check_pair(pair: Pair, folder: str) -> Row:
    """Check one graph whose paths are relative to a folder."""
    with chdir(folder):
        try:
            return to_row(check(pair.mixed, pair.against, pair.policy, name=pair.name))
        except CampoError as error:
            if is_out_of_memory(error):  # nothing to keep: with more memory it may pass
                raise
            return to_row(
                Verdicts(name=pair.name, mixed=str(pair.mixed), against=str(pair.against), error=error)
            )


def key_of(pair: Pair) -> str:
    """Name everything that decides the verdicts of a graph: its files, its limits, and this version."""
    question = {
        "campo-onnx": [VERSION, source_digest()],
        "name": pair.name,
        "mixed": str(pair.mixed),
        "against": str(pair.against),
        "policy": replace(pair.policy, baseline=None, inputs=()),  # files count by their content
        "files": {str(path): _digest(path) for path in sorted({*_files(pair)})},
    }
    return fingerprint(question)


def _files(pair: Pair) -> Iterator[Path]:
    for path in (pair.mixed, pair.against, pair.policy.baseline, *pair.policy.inputs):
        if path is not None:
            yield path
    for model in (pair.mixed, pair.against):
        yield from data_files_of(model)


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):  # the check says what is wrong with it
        return ""


def to_row(verdicts: Verdicts) -> Row:
    """Write verdicts as what JSON can hold; numbers that are not finite too."""
    error = verdicts.error
    row: Row = _finite(to_plain(replace(verdicts, error=None)))
    if error is not None:
        row["error"] = {
            "kind": type(error).__name__,
            "what": error.what,
            "why": error.why,
            "remedy": error.remedy,
        }
    return row


def from_row(row: Mapping[str, Any]) -> Verdicts:
    """Read :func:`to_row` back."""
    verdicts = from_plain(_numbers({**row, "error": None}), Verdicts)
    if (error := row["error"]) is None:
        return verdicts
    kind = getattr(errors, error["kind"])
    texts = [error[part] for part in ("what", "why", "remedy")]
    if not (
        isinstance(kind, type) and issubclass(kind, CampoError) and all(isinstance(t, str) for t in texts)
    ):
        raise TypeError(f"{error['kind']!r} is not an error of campo-onnx")
    return replace(verdicts, error=kind(texts[0], why=texts[1], remedy=texts[2]))


def _finite(plain: Any) -> Any:
    """Write numbers that are not finite as ``{"float": "inf"}``: JSON has no word for them."""
    if isinstance(plain, Mapping):
        return {key: _finite(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [_finite(value) for value in plain]
    return {_FLOAT: repr(plain)} if isinstance(plain, float) and not math.isfinite(plain) else plain


def _numbers(plain: Any) -> Any:
    if isinstance(plain, Mapping):
        is_number = plain.keys() == {_FLOAT}
        return float(plain[_FLOAT]) if is_number else {key: _numbers(value) for key, value in plain.items()}
    return [_numbers(value) for value in plain] if isinstance(plain, list) else plain


def _failed(pair: Pair, outcome: Outcome) -> Verdicts:
    what = f"{pair.name} could not be checked"
    error: CampoError
    if outcome.is_memory:
        error = OutOfMemoryError()
    elif outcome.traceback:
        error = InternalError(what, why=outcome.failure, traceback=outcome.traceback)
    else:  # its workers died: of too little memory, perhaps
        error = CampoError(what, why=outcome.failure, remedy="Check it alone; if that fails too, report it.")
    return Verdicts(name=pair.name, mixed=str(pair.mixed), against=str(pair.against), error=error)
