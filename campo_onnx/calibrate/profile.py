"""Profile one FP32 training step: a table with a row for every node.

On a CPU the times come from ONNX Runtime's own profile of repeated steps. On CUDA that profile
records launches only, so each distinct node is timed alone.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
from numpy.typing import NDArray

from campo_onnx.calibrate.device import Device
from campo_onnx.calibrate.events import EVENTS, events_of
from campo_onnx.calibrate.microbench import Bench, Measured, time_all
from campo_onnx.calibrate.signature import Signature, signature_of
from campo_onnx.errors import DeviceMismatchError, ProfileError, UsageError
from campo_onnx.ir.importer import Imported
from campo_onnx.ir.view import GraphView, OpKey
from campo_onnx.runtime.providers import Machine
from campo_onnx.runtime.sessions import bind, open_session
from campo_onnx.runtime.timing import Effort, Timing, measure
from campo_onnx.runtime.traces import trace

FORMAT_VERSION = 1
"""Version of the file; raised when a reader of the old one would misread the new one."""

TRACE = "trace"
ONE_NODE = "one-node"
CONSTANT = "constant"
FAILED = "not measured"

_KEY = "campo-onnx:profile"
_CONSTANT = OpKey("", "Constant")
_NOTHING = Timing(median_us=0.0, spread_us=0.0, repeats=0)
_SCHEMA: dict[str, pl.DataType] = {
    "node": pl.String(),
    "op": pl.String(),
    "inputs": pl.String(),
    "outputs": pl.String(),
    "fp32_us": pl.Float64(),
    "spread_us": pl.Float64(),
    "repeats": pl.Int64(),
    "measured": pl.String(),
    **{event: pl.Float64() for event in EVENTS},
}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """FP32 times of one graph on one machine.

    Parameters
    ----------
    table
        One row per node: name, op, types and shapes, median and spread in microseconds, repeats,
        how it was measured (``trace``, ``one-node``, ``constant``, ``not measured``), events. A
        time that was not measured is null.
    machine
        Where.
    digest
        Fingerprint of the graph.
    step_us
        The whole step as the runtime timed it.
    accounted
        Share of a step that its own node times add up to; None where the step was not traced.
    measured_at
        When, in UTC.
    """

    table: pl.DataFrame
    machine: Machine
    digest: str
    step_us: float
    accounted: float | None
    measured_at: str

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

    def ops(self) -> pl.DataFrame:
        """Time by operator, longest first: columns ``op``, ``nodes``, ``fp32_us``."""
        total = self.table.group_by("op").agg(pl.len().alias("nodes"), pl.col("fp32_us").sum())
        return total.sort("fp32_us", "op", descending=[True, False])

    def to_json(self) -> str:
        """The profile as a versioned JSON document."""
        document = {**self._facts(), "nodes": self.table.to_dicts()}
        return json.dumps(document, indent=1) + "\n"

    def _facts(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "machine": asdict(self.machine),
            "digest": self.digest,
            "step_us": self.step_us,
            "accounted": self.accounted,
            "measured_at": self.measured_at,
        }

    def check_fits(self, view: GraphView) -> None:
        """Make sure the profile is of this graph.

        Raises
        ------
        ProfileError
            If it is of another.
        """
        if self.digest != view.digest:
            raise ProfileError(
                "the profile is of another graph",
                why="nodes, shapes or attributes differ",
                remedy="Profile this graph with campo-onnx profile, with the same --dim.",
            )

    def check_device(self, machine: Machine) -> None:
        """Make sure the profile is of a device.

        Raises
        ------
        DeviceMismatchError
            If it is of another.
        """
        if not self.machine.is_same_device(machine):
            raise DeviceMismatchError(
                f"the profile is of {self.machine.device} ({self.machine.provider})",
                why=f"the costs are for {machine.device} ({machine.provider})",
                remedy="Profile the graph on that device.",
            )


def take_profile(
    imported: Imported,
    feeds: Mapping[str, NDArray[Any]],
    bench: Bench,
    device: Device,
    *,
    steps: int = 10,
    on_progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Run a graph and time its nodes.

    Parameters
    ----------
    imported
        The graph.
    feeds
        A value for every input.
    bench
        Where to run, and the store for nodes that are timed alone.
    device
        Figures of the machine, for the events.
    steps
        Steps that count.
    on_progress
        Called with what is done and what there is to do.

    Raises
    ------
    UnsupportedModelError
        If ONNX Runtime cannot load or run the graph.
    """
    view = imported.view
    signatures = {node.name: signature_of(node, view) for node in view.nodes}
    traced: Mapping[str, Timing] = {}
    accounted: float | None = None
    warmup = 2
    if bench.machine.provider == "cpu":
        done = _Counter(steps + warmup, on_progress)
        found = trace(
            imported.model,
            feeds,
            bench.machine,
            steps=steps,
            warmup=warmup,
            folder=imported.folder,
            on_step=done.advance,
        )
        traced, step_us, accounted = found.nodes, found.step.median_us, found.accounted
    else:
        session = open_session(imported.model, bench.machine, folder=imported.folder, strict=False)
        step = bind(session, feeds, bench.machine.provider)
        step_us = measure(step, Effort(warmup=warmup, repeats=steps, budget_s=60.0)).median_us
    alone = _time_alone(view, signatures, traced, bench, on_progress)
    rows = []
    for node in view.nodes:
        signature = signatures[node.name]
        timing, how = _timing(node.name, node.op, traced, alone, signature)
        rows.append(
            {
                "node": node.name,
                "op": node.op.label,
                "inputs": signature.input_types if signature else "",
                "outputs": signature.output_types if signature else "",
                "fp32_us": timing.median_us if timing else None,
                "spread_us": timing.spread_us if timing else None,
                "repeats": timing.repeats if timing else 0,
                "measured": how,
                **(events_of(signature, timing.median_us, device) if signature and timing else {}),
            }
        )
    return Profile(
        table=pl.DataFrame(rows, schema=_SCHEMA),
        machine=bench.machine,
        digest=view.digest,
        step_us=step_us,
        accounted=accounted,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


class _Counter:
    """Counts up towards a total and tells somebody."""

    def __init__(self, total: int, tell: Callable[[int, int], None] | None) -> None:
        self.done, self.total, self.tell = 0, total, tell

    def advance(self, _measured: Measured | None = None) -> None:
        self.done += 1
        if self.tell is not None:
            self.tell(self.done, self.total)


def _time_alone(
    view: GraphView,
    signatures: Mapping[str, Signature | None],
    traced: Mapping[str, Timing],
    bench: Bench,
    on_progress: Callable[[int, int], None] | None,
) -> Mapping[str, Timing]:
    """Time nodes the trace lacks, each distinct one once; by signature."""
    distinct: dict[str, Signature] = {}
    for node in view.nodes:
        signature = signatures[node.name]
        if signature is not None and node.name not in traced and node.op != _CONSTANT:
            distinct.setdefault(signature.key, signature)
    done = _Counter(len(distinct), on_progress if distinct else None)
    measured = time_all(distinct.values(), bench, done.advance)
    return {m.signature.key: m.timing for m in measured if m.timing is not None}


def _timing(
    name: str,
    op: OpKey,
    traced: Mapping[str, Timing],
    alone: Mapping[str, Timing],
    signature: Signature | None,
) -> tuple[Timing | None, str]:
    if op == _CONSTANT:
        return _NOTHING, CONSTANT
    if name in traced:
        return traced[name], TRACE
    if signature is not None and signature.key in alone:
        return alone[signature.key], ONE_NODE
    return None, FAILED


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile as parquet, beside its final place first.

    Raises
    ------
    UsageError
        If the file cannot be written.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        profile.table.write_parquet(draft, metadata={_KEY: json.dumps(profile._facts())})
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written", why=error.strerror or str(error)) from None


def read_profile(path: Path) -> Profile:
    """Read a profile back.

    Raises
    ------
    UsageError
        If the file does not exist.
    ProfileError
        If it is no profile, damaged, or of a newer version.
    """
    remedy = "Make it again with campo-onnx profile."
    if not path.is_file():
        raise UsageError(f"the profile {path} does not exist", remedy=remedy)
    try:
        table, metadata = pl.read_parquet(path), pl.read_parquet_metadata(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ProfileError(f"{path} cannot be read as a profile", why=str(error), remedy=remedy) from None
    try:
        facts = json.loads(metadata[_KEY])
        version = facts["format_version"]
        if version > FORMAT_VERSION:
            raise ProfileError(f"{path} is a profile of a newer campo-onnx", remedy="Update campo-onnx.")
        return Profile(
            table=table.select(list(_SCHEMA)),
            machine=Machine(**facts["machine"]),
            digest=facts["digest"],
            step_us=float(facts["step_us"]),
            accounted=facts["accounted"],
            measured_at=facts["measured_at"],
        )
    except (KeyError, TypeError, ValueError, pl.exceptions.PolarsError):
        raise ProfileError(
            f"{path} is no profile of campo-onnx", why="it is a parquet file of something else", remedy=remedy
        ) from None
