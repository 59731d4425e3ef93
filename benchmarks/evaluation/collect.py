"""What is on record of the evaluation, as one value that fits JSON, and its pictures."""

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.evaluation.node_times import CAST, NodeTime, mispredictions, scores
from benchmarks.evaluation.peers import PEERS
from benchmarks.evaluation.predicted import summary, with_ratios
from benchmarks.evaluation.strategies import CAMPO, FP32, OPTIMAL, STRATEGIES, TF_AMP
from benchmarks.figures import dots, stacked
from benchmarks.pages import made
from benchmarks.steps import Records
from benchmarks.zoo import TITLES
from campo_onnx import device

DEVICES = ("rtx2080ti", "v100", "h200")
"""What is predicted for: the paper's two GPUs and one of today."""

PROVIDERS = ("cuda", "cpu")
VARIANTS = ("full", "full-rtx2080ti", "small")

_KIND = 50
_PARTICULARS = re.compile(r"'[^']*'|\([^()]*\)|\[\w+\]|\d+")
"""What differs between errors of a kind: names, places, numbers."""

Data = dict[str, Any]


def collect(records: Records) -> Data:
    """Put everything on record together, ratios and summaries included."""
    predicted: Data = {}
    for name in DEVICES:
        found = {model: records.result(f"predicted-{name}-{model}") for model in TITLES}
        if rows := {model: with_ratios(result) for model, result in found.items() if result}:
            predicted[name] = {"models": rows, "summary": summary(rows)}
    graphs = {v: {m: records.result(f"graph-{m}-{v}") for m in TITLES} for v in VARIANTS}
    peers = [row for variant in ("full", "small") for row in _peers(records, variant)]
    return {
        "made": made(),
        "strategies": [*STRATEGIES],
        "titles": dict(TITLES),
        "peer_titles": {peer.name: peer.title for peer in PEERS.values()},
        "devices": {name: device(name).title for name in predicted},
        "batches": {v: {m: g["batch"] for m, g in found.items() if g} for v, found in graphs.items()},
        "predicted": predicted,
        "measured": {p: found for p in PROVIDERS if (found := _measured(records, p)) is not None},
        "peers": peers,
        "peer_errors": errors_of(peers),
        "updates": {m: result for m in TITLES if (result := records.result(f"update-{m}"))},
    }


def _peers(records: Records, variant: str) -> list[Data]:
    rows = []
    for peer in PEERS.values():
        refusal = (records.find(f"install-{peer.name}") or {}).get("failure")
        for model in TITLES:
            facts = records.find(f"peer-{peer.name}-{model}-{variant}")
            if facts is None and refusal:
                facts = {"failure": f"not installed: {refusal}"}
            if facts is not None:
                of = {"peer": peer.name, "title": peer.title, "model": model, "variant": variant}
                converted = facts.get("result")
                if converted is not None:
                    fp32_us, mixed_us = converted.pop("fp32_us"), converted.pop("predicted_us")
                    converted["speedups"] = {name: fp32_us[name] / us for name, us in mixed_us.items()}
                rows.append(of | {"failure": facts.get("failure", ""), "converted": converted})
    return rows


def errors_of(peers: Sequence[Data]) -> list[Data]:
    """What went wrong with the peers: errors of a kind once, with the models they hit."""
    kinds: dict[tuple[str, ...], Data] = {}
    for row in peers:
        converted = row["converted"] or {"invalid": "", "refused": ""}
        said = ("conversion", row["failure"]), ("onnx.checker", converted["invalid"])
        for where, text in (*said, ("ONNX Runtime", converted["refused"])):
            kind = (row["variant"], row["title"], where, _PARTICULARS.sub("", text)[:_KIND])
            if text:
                found = dict(zip(("variant", "title", "where", "message"), (*kind[:3], text), strict=True))
                kinds.setdefault(kind, found | {"models": []})["models"].append(row["model"])
    return [*kinds.values()]


def _measured(records: Records, provider: str) -> Data | None:
    parts = [facts for facts in records.all(f"measured-{provider}-").values() if "result" in facts]
    if not parts:
        return None
    newest = max(parts, key=lambda facts: facts["finished_at"])["asked"]
    alike = ("variant", "planned_for", "threads")  # of an earlier call with other options nothing is shown
    parts = [facts for facts in parts if all(facts["asked"][key] == newest[key] for key in alike)]
    rows: dict[str, Data] = {model: {} for model in TITLES}
    for facts in parts:
        found = rows[facts["asked"]["model"]]
        for label, row in facts["result"]["rows"].items():
            found.setdefault(label, row)  # the two that every group begins with: the first group's
    last = max((facts["result"] for facts in parts), key=lambda result: result["measured_at"])
    times = {
        of: [NodeTime(**time) for time in result]
        for of in (CAST, *TITLES)
        if (result := records.result(f"nodes-{provider}-{of}")) is not None
    }
    return {
        **{key: newest[key] for key in alike},
        "planned_for_title": device(newest["planned_for"]).title,
        **{key: last[key] for key in ("machine", "measured_at", "energy_from", "memory_from")},
        "load_average": max(facts["load_average"][0] for facts in parts),
        "batch": {facts["asked"]["model"]: facts["result"]["batch"] for facts in parts},
        "rows": {model: _shared(found) for model, found in rows.items() if found},
        "accuracy": scores([time for found in times.values() for time in found]),
        "mispredictions": {of: mispredictions(found) for of, found in times.items() if of != CAST},
    }


def _shared(rows: Mapping[str, Data]) -> list[Data]:
    """Put the strategies together that decide alike and share a graph and its figures."""
    found: dict[str, Data] = {}
    for label, row in rows.items():
        title = PEERS[label].title if label in PEERS else label
        found.setdefault(row["name"], row | {"labels": [], "titles": []})
        found[row["name"]]["labels"].append(label)
        found[row["name"]]["titles"].append(title)
    return [*found.values()]


def draw(data: Data, folder: Path) -> list[Path]:
    """Draw what is on record, if matplotlib is installed; give the files."""
    if find_spec("matplotlib") is None:  # as on a lent machine: --report draws elsewhere
        return []
    series = [label for label in data["strategies"] if label != FP32]
    ratio = {"axis": "times FP32's throughput (right is better)", "reference": 1.0}
    written = []

    def path_of(name: str) -> Path:
        written.append(folder / f"campo_eval_{name}.svg")
        return written[-1]

    for name, found in data["predicted"].items():
        where = f"{data['devices'][name]}, predicted"

        def values(key: str, scale: float = 1.0, models: Data = found["models"]) -> Data:
            return {TITLES[m]: {s: r[key] * scale for s, r in rows.items()} for m, rows in models.items()}

        title = f"Throughput over FP32: {where}"
        dots(values("speedup"), series, path_of(f"throughput_{name}"), title=title, **ratio)
        path = path_of(f"casts_{name}")
        axis = "inserted Casts (logarithmic)"
        dots(values("casts"), series, path, title=f"Casts: {where}", axis=axis, logarithmic=True)
        path, axis = path_of(f"tensor_cores_{name}"), "FP16 nodes on tensor cores, % of the step"
        title = f"Tensor-core utilization: {where}"
        dots(values("tensor_core_share", 100), series, path, title=title, axis=axis)
        parts = {
            f"{TITLES[model]}, {label}": {
                "graph rewriting": 100 * rows[label]["rewriting"],
                "padding": 100 * rows[label]["padding"],
            }
            for model, rows in found["models"].items()
            for label in (CAMPO, OPTIMAL)
            if label in rows and TF_AMP in rows
        }
        title = f"Where throughput over TF_AMP comes from: {where}"
        axis = "step saved, % of TF_AMP's step (below 0: lost)"
        path = path_of(f"breakdown_{name}")
        stacked(parts, ("graph rewriting", "padding"), path, title=title, axis=axis)
    for provider, found in data["measured"].items():
        medians = {
            TITLES[model]: {
                label: row["speedup"]["median"] for row in rows if row["speedup"] for label in row["labels"]
            }
            for model, rows in found["rows"].items()
        }
        title = f"Throughput over FP32, measured on {found['machine']['device']} ({provider})"
        dots(medians, series, path_of(f"throughput_measured_{provider}"), title=title, **ratio)
    return written
