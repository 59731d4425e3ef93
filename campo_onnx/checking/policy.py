"""What a mixed graph has to live up to, and the policy file of a repository that holds many."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from campo_onnx.devices.datasheet import device as device_called
from campo_onnx.devices.device import Device
from campo_onnx.errors import UsageError
from campo_onnx.optimize.oplists import OpLists, preset, resolve

DEFAULT_MAX_DRIFT = 1e-2
DEFAULT_MIN_SPEEDUP = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits for one mixed graph.

    Parameters
    ----------
    max_drift
        Relative L2 error that the loss, a gradient or any other output may have.
    min_speedup
        Predicted FP32 step over predicted mixed step, at least.
    max_casts
        Casts that may be inserted; None sets no limit of its own.
    baseline
        A committed plan, which the graph may not fall behind: not more casts, no slower step.
    device
        What the step is predicted for; None takes the baseline's device, else the one that the mixed
        file was made for (a file that was edited since does not say), else what ``auto`` is.
    lists
        Op lists that say which operators are deny.
    keep_fp32
        Regular expressions for nodes and operators that have to be FP32 as well.
    dims
        Sizes of symbolic dimensions.
    inputs
        Batches (.npz) to measure drift on; without any, inputs are made up.
    strict
        Whether a rule that cannot be checked counts as failed.
    """

    max_drift: float = DEFAULT_MAX_DRIFT
    min_speedup: float = DEFAULT_MIN_SPEEDUP
    max_casts: int | None = None
    baseline: Path | None = None
    device: Device | None = None
    lists: OpLists = field(default_factory=lambda: preset("campo"))
    keep_fp32: tuple[str, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[Path, ...] = ()
    strict: bool = False

    def __post_init__(self) -> None:
        """Refuse limits that no graph, or every graph, would keep."""
        for name in ("max_drift", "min_speedup"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} is {value}", remedy="Give a number that is not negative.")
        if self.max_casts is not None and self.max_casts < 0:
            raise UsageError(f"max_casts is {self.max_casts}", remedy="Give a number that is not negative.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A mixed graph, the FP32 graph it was made from, and what is asked of it."""

    name: str
    mixed: Path
    against: Path
    policy: Policy


_LIMITS = ("max_drift", "min_speedup", "max_casts", "device", "lists", "keep_fp32", "strict")
_OF_ONE_GRAPH = ("name", "mixed", "against", "baseline", "dims", "inputs")


def load_policy(path: Path) -> tuple[Pair, ...]:
    """Read a policy file.

    A ``[[graph]]`` table names ``mixed`` and ``against``, and may have ``name``, ``baseline``,
    ``dims``, ``inputs`` and every limit; ``[defaults]`` holds limits for all graphs: ``max_drift``,
    ``min_speedup``, ``max_casts``, ``device``, ``lists``, ``keep_fp32``, ``strict``. They mean what
    :class:`Policy` says. Paths are relative to the file.

    Raises
    ------
    UsageError
        If the file cannot be read, has an unknown key or a value of the wrong type, or no graph.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", remedy="Check the path of --policy.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read", why=error.strerror or str(error)) from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise UsageError(f"{path} is not a policy file", why=f"it is not TOML: {error}") from None
    top = _Table(path, "the file", data, ("defaults", "graph"))
    defaults = _Table(path, "[defaults]", top.value("defaults", dict, {}), _LIMITS)
    rows = top.value("graph", list, [])
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise UsageError(
            f"{path} names no graph", remedy="Add a [[graph]] table with the keys mixed and against."
        )
    pairs = tuple(_pair(path, row, defaults, index) for index, row in enumerate(rows, start=1))
    names = [pair.name for pair in pairs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{path}: two graphs are called {name!r}", remedy="Give each a name of its own.")
    return pairs


def _pair(path: Path, row: dict[str, Any], defaults: "_Table", index: int) -> Pair:
    title = f"[[graph]] {row.get('name', row.get('mixed', index))!r}"
    table = _Table(path, title, row, (*_OF_ONE_GRAPH, *_LIMITS))
    mixed, against = (table.required(key) for key in ("mixed", "against"))
    folder = path.parent
    baseline = table.value("baseline", str, None)
    return Pair(
        name=table.value("name", str, mixed),
        mixed=folder / mixed,
        against=folder / against,
        policy=Policy(
            baseline=None if baseline is None else folder / baseline,
            dims=table.sizes("dims"),
            inputs=tuple(folder / name for name in table.strings("inputs")),
            **(_limits(defaults) | _limits(table)),
        ),
    )


def _limits(table: "_Table") -> dict[str, Any]:
    """Read the limits that a table sets."""
    read: dict[str, Any] = {
        "max_drift": lambda: table.number("max_drift"),
        "min_speedup": lambda: table.number("min_speedup"),
        "max_casts": lambda: table.count("max_casts"),
        "device": lambda: device_called(table.value("device", str, "")),
        "lists": lambda: _lists(table.path.parent, table.value("lists", str, "")),
        "keep_fp32": lambda: table.strings("keep_fp32"),
        "strict": lambda: table.value("strict", bool, False),
    }
    return {key: reader() for key, reader in read.items() if key in table.data}


def _lists(folder: Path, name: str) -> OpLists:
    beside = folder / name
    return resolve(str(beside) if beside.is_file() else name)


_KIND = {str: "a string", bool: "true or false", list: "an array", dict: "a table"}


class _Table:
    """One table of the file, whose keys are known and whose values have a type."""

    def __init__(self, path: Path, title: str, data: dict[str, Any], known: tuple[str, ...]) -> None:
        self.path, self.title, self.data = path, title, data
        for key in data:
            if key not in known:
                near = get_close_matches(key, known, n=1)
                raise UsageError(
                    f"{path}: unknown key {key!r} in {title}",
                    remedy=f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}.",
                )

    def value(self, key: str, kind: type, default: Any) -> Any:
        if key in self.data and not isinstance(self.data[key], kind):
            raise self._wrong(key, _KIND[kind])
        return self.data.get(key, default)

    def required(self, key: str) -> str:
        if key not in self.data:
            raise UsageError(f"{self.path}: {self.title} lacks the key {key!r}", remedy="Add it.")
        return str(self.value(key, str, ""))

    def number(self, key: str) -> float:
        value = self.data[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise self._wrong(key, "a number that is not negative")
        return float(value)

    def count(self, key: str) -> int:
        value = self.data[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, "a whole number that is not negative")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        values = self.value(key, list, [])
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(key, "an array of strings")
        return tuple(values)

    def sizes(self, key: str) -> dict[str, int]:
        sizes: dict[str, Any] = self.value(key, dict, {})
        if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes.values()):
            raise self._wrong(key, "a table of whole numbers")
        return sizes

    def _wrong(self, key: str, wanted: str) -> UsageError:
        return UsageError(
            f"{self.path}: {key!r} in {self.title} must be {wanted}", why=f"it is {self.data[key]!r}"
        )
