"""What is on record, as values: the one thing that tables, pictures and claims are made from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evaluation.converted import Converted
from evaluation.models import FULL, SMALL, TITLES
from evaluation.node_times import CAST, NodeTime
from evaluation.peers import PEERS
from evaluation.predicted import PredictedRow
from evaluation.steps import Records

DEVICES = ("rtx2080ti", "v100", "h200")
"""What is predicted for: the paper's two GPUs and one of today."""

PROVIDERS = ("cuda", "cpu")

Predicted = Mapping[str, Mapping[str, PredictedRow]]
"""By model, by strategy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOutcome:
    """A peer on one graph: why there is no result, or what the result is like."""

    failure: str
    converted: Converted | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurements of one provider.

    Parameters
    ----------
    provider, variant, planned_for
        Where, on which variants of the models, and the device that was planned for.
    machine
        Fields of :class:`~campo_onnx.runtime.providers.Machine`.
    measured_at
        When the last of them ended.
    load_average
        The highest one-minute load average seen at the end of a measurement.
    energy_from, memory_from
        How these were measured, or why not.
    batch
        By model.
    rows
        By model, by label: fields of :class:`~campo_onnx.bench.result.BenchRow` and more.
    times
        Of single nodes, by model; Casts under ``"Cast"``.
    """

    provider: str
    variant: str
    planned_for: str
    machine: Mapping[str, Any]
    measured_at: str
    load_average: float
    energy_from: str
    memory_from: str
    batch: Mapping[str, int]
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]]
    times: Mapping[str, tuple[NodeTime, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything on record.

    Parameters
    ----------
    predicted
        By device.
    batches
        Batch size by variant and model.
    measured
        By provider; one that nothing was measured on is missing.
    peers
        By variant, peer and model.
    updates
        Errors of the weights' update, by model and label.
    """

    predicted: Mapping[str, Predicted]
    batches: Mapping[tuple[str, str], int]
    measured: Mapping[str, Measured]
    peers: Mapping[tuple[str, str, str], PeerOutcome]
    updates: Mapping[str, Mapping[str, Mapping[str, Any]]]


def read_findings(records: Records) -> Findings:
    """Read every record."""
    graphs = {name: facts["result"] for name, facts in records.all("graph-").items() if facts.get("result")}
    return Findings(
        predicted={device: rows for device in DEVICES if (rows := _predicted(records, device))},
        batches={
            (variant, model): graphs[f"graph-{model}-{variant}"]["batch"]
            for variant in (FULL, "full-rtx2080ti", SMALL)
            for model in TITLES
            if f"graph-{model}-{variant}" in graphs
        },
        measured={p: found for p in PROVIDERS if (found := _measured(records, p)) is not None},
        peers={
            (variant, peer, model): _peer(facts)
            for variant in (FULL, SMALL)
            for peer in PEERS
            for model in TITLES
            if (facts := records.find(f"peer-{peer}-{model}-{variant}")) is not None
        },
        updates=_by_model(records, "update-{model}", lambda result: result["rows"]),
    )


def _by_model(records: Records, name: str, read: Callable[[Any], Any]) -> dict[str, Any]:
    return {
        model: read(result)
        for model in TITLES
        if (result := records.result(name.format(model=model))) is not None
    }


def _predicted(records: Records, device: str) -> Predicted:
    def rows_of(result: Any) -> dict[str, PredictedRow]:
        return {label: PredictedRow(**row) for label, row in result["rows"].items()}

    return _by_model(records, f"predicted-{device}-{{model}}", rows_of)


def _peer(facts: Mapping[str, Any]) -> PeerOutcome:
    result = facts.get("result", {"failure": facts.get("failure", ""), "converted": None})
    converted = result["converted"]
    return PeerOutcome(
        failure=result["failure"], converted=None if converted is None else Converted(**converted)
    )


def _measured(records: Records, provider: str) -> Measured | None:
    parts = [facts for facts in records.all(f"measured-{provider}-").values() if "result" in facts]
    if not parts:
        return None
    newest = max(parts, key=lambda facts: str(facts["date"]))["asked"]
    alike = ("variant", "planned_for", "threads")
    parts = [facts for facts in parts if all(facts["asked"][key] == newest[key] for key in alike)]
    rows: dict[str, dict[str, Any]] = {model: {} for model in TITLES}
    for facts in parts:
        found = rows[facts["asked"]["model"]]
        for label, row in facts["result"]["rows"].items():
            found.setdefault(label, row)  # the two that every group begins with: the first group's
    last = max((facts["result"] for facts in parts), key=lambda result: str(result["measured_at"]))
    return Measured(
        provider=provider,
        variant=parts[0]["asked"]["variant"],
        planned_for=parts[0]["asked"]["planned_for"],
        machine=last["machine"],
        measured_at=last["measured_at"],
        load_average=max(facts["load_average"][0] for facts in parts),
        energy_from=last["energy_from"],
        memory_from=last["memory_from"],
        batch={facts["asked"]["model"]: facts["result"]["batch"] for facts in parts},
        rows={model: found for model, found in rows.items() if found},
        times={
            of: tuple(NodeTime(**time) for time in result["times"])
            for of in (CAST, *TITLES)
            if (result := records.result(f"nodes-{provider}-{of}")) is not None
        },
    )
