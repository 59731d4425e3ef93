"""Limits for mixed graphs, and the policy file of a repository that holds many."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from campo_onnx.errors import UsageError
from campo_onnx.files import read_bytes
from campo_onnx.files.codec import DecodeError, from_plain, from_toml
from campo_onnx.optimize.lists.list_file import resolve
from campo_onnx.optimize.lists.oplists import OpLists, preset
from campo_onnx.optimize.values.ranges import DeclaredRange
from campo_onnx.targets.target import Target, target

DEFAULT_MIN_SPEEDUP = 1.0
_NO_LIMIT = 1 << 63  # what verdicts are kept in has no larger numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits for one mixed graph."""

    # largest relative L2 error of the loss, a gradient or any other output; None takes what the low precision
    # allows (`campo_onnx.emulation.drift.most_drift`)
    max_drift: float | None = None
    min_speedup: float = DEFAULT_MIN_SPEEDUP  # smallest predicted FP32 step over predicted mixed step
    max_casts: int | None = None  # most Casts that may be inserted; None sets no limit of its own
    baseline: Path | None = None  # a committed plan; the graph may have neither more casts nor a slower step
    # what the step is predicted for; None takes the baseline's, else the one that the mixed file was made for
    # (a file that was edited since does not say), else what `auto` finds
    target: Target | None = None
    # op lists that say which operators are deny
    lists: OpLists = field(default_factory=lambda: preset("campo"))
    keep_fp32: tuple[str, ...] = ()  # regular expressions for further nodes and operators that must be FP32
    # sizes of symbolic dimensions
    dims: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    # batches (.npz) to measure drift on; inputs are generated where there are none
    inputs: tuple[Path, ...] = ()
    # declared ranges of graph inputs, beside those that the baseline relies on: what is generated lies within
    # them
    ranges: Mapping[str, DeclaredRange] = field(default_factory=lambda: MappingProxyType({}))
    strict: bool = False  # whether a rule that cannot be checked counts as failed

    def __post_init__(self) -> None:
        """Refuse limits that no graph, or every graph, would satisfy."""
        for name in ("max_drift", "min_speedup", "max_casts"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < _NO_LIMIT:
                raise UsageError(
                    f"{name} is {value}", remedy="Give a number that is not negative, and below 2^63."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A mixed graph, the FP32 graph it was made from, and its limits."""

    name: str
    mixed: Path
    against: Path
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """Settings of ``[defaults]`` and of every ``[[graph]]``; None where unset."""

    max_drift: float | None = None
    min_speedup: float | None = None
    max_casts: int | None = None
    device: str | None = None
    lists: str | None = None
    keep_fp32: tuple[str, ...] | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph(_Limits):
    mixed: str
    against: str
    name: str | None = None
    baseline: str | None = None
    dims: dict[str, int] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    ranges: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PolicyFile:
    graph: tuple[_Graph, ...] = ()
    defaults: _Limits = field(default_factory=_Limits)


def load_policy(path: Path) -> tuple[Pair, ...]:
    """Read a policy file.

    A ``[[graph]]`` table names ``mixed`` and ``against``, and may have ``name``, ``baseline``,
    ``dims``, ``inputs``, ``ranges`` (``{mask = [-10000, 0]}``) and every limit; ``[defaults]`` holds
    limits for all graphs: ``max_drift``, ``min_speedup``, ``max_casts``, ``device``, ``lists``,
    ``keep_fp32``, ``strict``. They mean what :class:`Policy` says. Paths are relative to the file.
    """
    data = read_bytes(path, title=f"the policy {path}", remedy="Check the path of --policy.")
    try:
        file = from_plain(from_toml(data), _PolicyFile)
    except DecodeError as error:
        raise UsageError(f"the policy {path} cannot be read", why=str(error)) from None
    if not file.graph:
        raise UsageError(
            f"the policy {path} names no graph",
            remedy="Add a [[graph]] table with the keys mixed and against.",
        )
    pairs = tuple(_pair(path, number, graph, file.defaults) for number, graph in enumerate(file.graph))
    for name, count in Counter(pair.name for pair in pairs).items():
        if count > 1:
            raise UsageError(
                f"the policy {path} has {count} graphs named {name!r}", remedy="Give each a name of its own."
            )
    return pairs


def _pair(path: Path, number: int, graph: _Graph, defaults: _Limits) -> Pair:
    folder = path.parent
    try:
        _refuse_null_characters(graph, defaults)
        policy = Policy(
            baseline=None if graph.baseline is None else folder / graph.baseline,
            dims=MappingProxyType(graph.dims),
            inputs=tuple(folder / name for name in graph.inputs),
            ranges={name: _range(name, bounds) for name, bounds in graph.ranges.items()},
            **_limits(folder, graph, defaults),
        )
    except UsageError as error:
        what = f"the policy {path}, graph[{number}]: {error.what}"
        raise UsageError(what, why=error.why, remedy=error.remedy) from None
    return Pair(
        name=graph.name or graph.mixed,
        mixed=folder / graph.mixed,
        against=folder / graph.against,
        policy=policy,
    )


def _refuse_null_characters(*tables: _Limits) -> None:
    """Refuse a path that no system call takes."""
    for table in tables:
        for key in fields(table):
            value = getattr(table, key.name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and "\0" in text:
                    raise UsageError(f"{key.name} holds a null character", remedy="Write it without.")


def _range(name: str, bounds: tuple[float, ...]) -> DeclaredRange:
    if len(bounds) != 2:
        raise UsageError(
            f"ranges.{name} has {len(bounds)} values", remedy="Give the lowest and the highest: [-10000, 0]."
        )
    return DeclaredRange(lowest=bounds[0], highest=bounds[1])


def _limits(folder: Path, graph: _Graph, defaults: _Limits) -> dict[str, Any]:
    """Limits that the graph sets, else the defaults, as arguments of :class:`Policy`."""
    limits: dict[str, Any] = {}
    for limit in fields(_Limits):
        own = getattr(graph, limit.name)
        value = own if own is not None else getattr(defaults, limit.name)
        if value is not None:
            limits[limit.name] = value
    if "device" in limits:
        limits["target"] = target(limits.pop("device"))
    if "lists" in limits:
        beside = folder / limits["lists"]
        is_file = os.path.lexists(beside) and not os.path.isdir(beside)
        limits["lists"] = resolve(str(beside) if is_file else limits["lists"])
    return limits
