"""The profile of one FP32 training step: a table with a row for every node, and its file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from hashlib import blake2b
from io import BytesIO
from pathlib import Path

import polars as pl

from campo_onnx.errors import DeviceMismatchError, ProfileError
from campo_onnx.files import check_file, read_bytes, replacing
from campo_onnx.files.codec import to_json
from campo_onnx.files.document_format import Format
from campo_onnx.ir.limits import MAX_NODES
from campo_onnx.ir.view import GraphView
from campo_onnx.measure.counters import COUNTERS
from campo_onnx.measure.events import EVENTS
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.timing import LONGEST_US

_KEY = "campo-onnx:profile"
_SEAL_KEY = "campo-onnx:seal"
_SEAL = re.compile(rb"(?<=campo-onnx blake2b )[0-9a-f]{64}")
_UNSEALED = f"campo-onnx blake2b {'0' * 64}"
SCHEMA: dict[str, pl.DataType] = {
    "node": pl.String(),
    "op": pl.String(),
    "inputs": pl.String(),
    "outputs": pl.String(),
    "fp32_us": pl.Float64(),
    "spread_us": pl.Float64(),
    "repeats": pl.Int64(),
    "measured": pl.String(),
    **{event: pl.Float64() for event in EVENTS},
    **{counter: pl.Float64() for counter in COUNTERS},
}
"""Columns of the table."""


class MeasuredBy(StrEnum):
    """Method by which a node was timed."""

    TRACE = "trace"  # the runtime's own profile of whole steps
    KERNEL_TRACE = "kernel trace"  # kernels of whole steps, joined to nodes
    ONE_NODE = "one-node"  # alone
    CONSTANT = "constant"  # it takes no time
    FAILED = "not measured"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """FP32 times of one graph on one machine."""

    # One row per node: name, op, types and shapes, median and spread in microseconds, repeats, how it was
    # measured (values of MeasuredBy), events, hardware counters. What was not measured is null.
    table: pl.DataFrame
    machine: Machine
    digest: str
    step_us: float  # the whole step as the runtime timed it
    # Share of a step (on CUDA: of the time in which the GPU was busy) that its own node times add up to; None
    # where the step was not traced.
    accounted: float | None
    measured_at: str
    # Why the kernel trace or hardware counters were not used, where they were asked for; that it was
    # interrupted.
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def nodes_us(self) -> float:
        """Sum of all nodes."""
        return float(self.table["fp32_us"].sum())

    @property
    def failed(self) -> int:
        """Nodes that were not measured."""
        return int(self.table["fp32_us"].null_count())

    def fp32_us(self) -> Mapping[str, float]:
        """FP32 time by node name, of the nodes that were measured."""
        rows = self.table.select("node", "fp32_us").drop_nulls().iter_rows()
        return dict(rows)

    def counters(self) -> Mapping[str, Mapping[str, float]]:
        """Hardware counters by node name, of the nodes that have any."""
        rows = self.table.select("node", *COUNTERS).iter_rows(named=True)
        by_node = {
            row["node"]: {name: row[name] for name in COUNTERS if row[name] is not None} for row in rows
        }
        return {name: counters for name, counters in by_node.items() if counters}

    def ops(self) -> pl.DataFrame:
        """Time by operator, longest first: columns ``op``, ``nodes``, ``fp32_us``."""
        total = self.table.group_by("op").agg(pl.len().alias("nodes"), pl.col("fp32_us").sum())
        return total.sort("fp32_us", "op", descending=[True, False])

    def to_json(self) -> str:
        """The profile as a versioned JSON document, one node a line."""
        return to_json(FORMAT.document(self._facts()) | {"nodes": self.table.to_dicts()}, rows=("nodes",))

    def _facts(self) -> "_Facts":
        return _Facts(**{field.name: getattr(self, field.name) for field in fields(_Facts)})

    def check_fits(self, view: GraphView) -> None:
        """Make sure the profile is of this graph."""
        if self.digest != view.digest:
            raise ProfileError(
                "the profile is of another graph",
                why="nodes, shapes or attributes differ",
                remedy="Profile this graph with campo-onnx profile, with the same --dim.",
            )

    def check_device(self, machine: Machine) -> None:
        """Make sure the profile is of a device, in the same state.

        Raises DeviceMismatchError if it is of another, or FP32 meant something else: with and without TF32.
        """
        if not self.machine.is_same_device(machine):
            raise DeviceMismatchError(
                f"the profile is of {self.machine.device} ({self.machine.provider})",
                why=f"the costs are for {machine.device} ({machine.provider})",
                remedy="Profile the graph on that device.",
            )
        if self.machine.tf32 != machine.tf32:
            raise DeviceMismatchError(
                f"the profile was taken {_with_tf32(self.machine)}",
                why=f"the costs are for FP32 {_with_tf32(machine)}",
                remedy="Profile the graph again; NVIDIA_TF32_OVERRIDE=0 turns TF32 off.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """A profile without its table: what lies in the parquet file's metadata."""

    machine: Machine
    digest: str
    step_us: float
    accounted: float | None
    measured_at: str
    notes: tuple[str, ...] = ()


FORMAT = Format(
    holds=_Facts,
    noun="profile",
    kind="campo-onnx profile",
    version=3,
    error=ProfileError,
    remedy="Make it again with campo-onnx profile.",
)
"""Metadata of the file beside its table."""


def _with_tf32(machine: Machine) -> str:
    return f"{'with' if machine.tf32 else 'without'} TF32"


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile as parquet, beside its final place first."""
    with replacing(path, also=(pl.exceptions.PolarsError,)) as file:
        metadata = {_KEY: FORMAT.encode(profile._facts()), _SEAL_KEY: _UNSEALED}
        profile.table.write_parquet(file, metadata=metadata)
        file.write_bytes(sealed(file.read_bytes()))


def sealed(data: bytes) -> bytes:
    """Write into the place for it the digest of a parquet file, taken with zeros in that place.

    A reader of parquet in threads of its own ends the process at bytes that it does not expect, so that they
    are compared with the digest before it sees them.

    The file is as long as before. One without a place for a digest is returned as it is.
    """
    places = [*_SEAL.finditer(data)]
    if not places:
        return data
    start, end = places[-1].span()  # metadata lies behind the table
    before, after = data[:start], data[end:]
    digest = blake2b(before + b"0" * (end - start) + after, digest_size=32).hexdigest()
    return before + digest.encode() + after


def read_profile(path: Path) -> Profile:
    """Read a profile back."""
    title = f"the profile {path}"
    check_file(path, title=title, remedy=FORMAT.remedy)
    data = read_bytes(path, title=title, too_large=ProfileError)
    if not _SEAL.search(data):
        is_older = _KEY.encode() in data
        why = "an older campo-onnx wrote it" if is_older else "it is a file of something else"
        raise _unreadable(path, why)
    if sealed(data) != data:
        raise _unreadable(path, "it is damaged: its bytes are not those that were written")
    try:
        facts = FORMAT.decode(pl.read_parquet_metadata(BytesIO(data))[_KEY], str(path))
        table = pl.read_parquet(BytesIO(data), n_rows=MAX_NODES)
        table = table.with_columns(pl.lit(None).alias(name) for name in EVENTS if name not in table.columns)
        table = table.select(list(SCHEMA)).cast(pl.Schema(SCHEMA))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, KeyError, OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from None
    times = table["fp32_us"].drop_nulls().abs()
    if not (times <= LONGEST_US).all():  # NaN is above every number here
        raise _unreadable(path, "it is damaged: a time in it is not a valid number")
    return Profile(table=table, **{field.name: getattr(facts, field.name) for field in fields(facts)})


def _unreadable(path: Path, why: str) -> ProfileError:
    return ProfileError(f"{path} cannot be read as a profile", why=why, remedy=FORMAT.remedy)
