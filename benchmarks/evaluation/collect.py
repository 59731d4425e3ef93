"""The evaluation's records as one value that fits JSON, and its pictures."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.evaluation.node_times import CAST, mispredictions, scores
from benchmarks.evaluation.peers import PEERS
from benchmarks.evaluation.predicted import summary, with_ratios
from benchmarks.evaluation.strategies import CAMPO, FP32, OPTIMAL, STRATEGIES, TF_AMP
from benchmarks.figures import dots, stacked
from benchmarks.pages import provenance
from benchmarks.steps import Records
from benchmarks.zoo import TITLES
from campo_onnx import target

DEVICES = ("rtx2080ti", "v100", "h200")
"""Devices of the predictions: the paper's two GPUs and one of today."""

PROVIDERS = ("cuda", "cpu")
VARIANTS = ("full", "full-rtx2080ti", "small")

_KIND = 50
_PARTICULARS = re.compile(r"'[^']*'|\([^()]*\)|\[\w+\]|\d+")
"""Names, places and numbers: they differ between errors of a kind."""

Data = dict[str, Any]


def collect(records: Records) -> Data:
    """Put everything on record together, ratios and summaries included."""

    def by_model(name: str) -> Data:
        return {m: result for m in TITLES if (result := records.result(name.format(m)))}

    predicted = {name: rows for name in DEVICES if (rows := by_model(f"predicted-{name}-{{}}"))}
    predicted = {name: {m: with_ratios(row) for m, row in rows.items()} for name, rows in predicted.items()}
    graphs = {variant: by_model(f"graph-{{}}-{variant}") for variant in VARIANTS}
    peers = [row for variant in ("full", "small") for row in _peers(records, variant)]
    return {
        "made": provenance(),
        "strategies": [*STRATEGIES],
        "titles": dict(TITLES),
        "peer_titles": {peer.name: peer.title for peer in PEERS.values()},
        "devices": {name: target(name).hardware.title for name in predicted},
        "batches": {v: {m: graph["batch"] for m, graph in models.items()} for v, models in graphs.items()},
        "predicted": {name: {"models": rows, "summary": summary(rows)} for name, rows in predicted.items()},
        "measured": {p: measured for p in PROVIDERS if (measured := _measured(records, p)) is not None},
        "peers": peers,
        "peers_of": provenance(),
        "peer_errors": errors_of(peers),
    }


def _peers(records: Records, variant: str) -> list[Data]:
    rows = []
    for peer in PEERS.values():
        refusal = (records.find(f"install-{peer.name}") or {}).get("failure")
        refused = {"failure": f"not installed: {refusal}"} if refusal else None
        for model in TITLES:
            facts = records.find(f"peer-{peer.name}-{model}-{variant}") or refused
            if facts is not None:
                of = {"peer": peer.name, "title": peer.title, "model": model, "variant": variant}
                converted = facts.get("result")
                if converted is not None:
                    fp32_us, mixed_us = converted.pop("fp32_us"), converted.pop("predicted_us")
                    converted["speedups"] = {name: fp32_us[name] / us for name, us in mixed_us.items()}
                rows.append(of | {"failure": facts.get("failure", ""), "converted": converted})
    return rows


def errors_of(peers: Sequence[Data]) -> list[Data]:
    """Errors of the peers: each kind once, with the models that it hit."""
    kinds: dict[tuple[str, ...], Data] = {}
    for row in peers:
        converted = row["converted"] or {"invalid": "", "refused": ""}
        said = {"conversion": row["failure"], "onnx.checker": converted["invalid"]}
        for where, text in (said | {"ONNX Runtime": converted["refused"]}).items():
            kind = (row["variant"], row["title"], where, _PARTICULARS.sub("", text)[:_KIND])
            if text:
                error = dict(zip(("variant", "title", "where", "message"), (*kind[:3], text), strict=True))
                kinds.setdefault(kind, error | {"models": []})["models"].append(row["model"])
    return [*kinds.values()]


def _measured(records: Records, provider: str) -> Data | None:
    parts = [facts for facts in records.all(f"measured-{provider}-").values() if "result" in facts]
    if not parts:
        return None
    newest = max(parts, key=lambda facts: facts["finished_at"])["asked"]
    alike = ("variant", "planned_for", "threads")  # of an earlier call with other options nothing is shown
    parts = [facts for facts in parts if all(facts["asked"][key] == newest[key] for key in alike)]
    rows: dict[str, Data] = {model: {} for model in TITLES}
    for facts in parts:  # the two that every group begins with: the first group's
        model = facts["asked"]["model"]
        rows[model] = facts["result"]["rows"] | rows[model]
    last = max((facts["result"] for facts in parts), key=lambda result: result["measured_at"])
    names = {of: f"nodes-{provider}-{of}" for of in (CAST, *TITLES)}
    times = {of: result for of, name in names.items() if (result := records.result(name)) is not None}
    return {
        **{key: newest[key] for key in alike},
        "planned_for_title": target(newest["planned_for"]).hardware.title,
        "of": provenance()["versions"],
        **{key: last[key] for key in ("machine", "measured_at", "energy_from", "memory_from")},
        "load_average": max(facts["load_average"][0] for facts in parts),
        "batch": {facts["asked"]["model"]: facts["result"]["batch"] for facts in parts},
        "rows": {model: _shared(by_label) for model, by_label in rows.items() if by_label},
        "accuracy": scores([time for nodes in times.values() for time in nodes]),
        "mispredictions": {of: mispredictions(nodes) for of, nodes in times.items() if of != CAST},
    }


def _shared(rows: Mapping[str, Data]) -> list[Data]:
    """Put the strategies together that decide alike and share a graph and its figures."""
    by_graph: dict[str, Data] = {}
    for label, row in rows.items():
        shared = by_graph.setdefault(row["name"], row | {"labels": [], "titles": []})
        shared["labels"].append(label)
        shared["titles"].append(PEERS[label].title if label in PEERS else label)
    return [*by_graph.values()]


def draw(data: Data, folder: Path) -> list[Path]:
    """Draw what is on record, if matplotlib is installed; give the files."""
    if find_spec("matplotlib") is None:  # as on a lent machine: --report draws elsewhere
        return []
    series = [label for label in data["strategies"] if label != FP32]
    ratio = {"axis": "times FP32's throughput (right is better)", "reference": 1.0}
    written = []

    def dotted(name: str, values: Data, **how: Any) -> None:
        written.append(folder / f"campo_eval_{name}.svg")
        dots({TITLES[model]: row for model, row in values.items()}, series, written[-1], **how)

    def column(models: Data, key: str, scale: float = 1.0) -> Data:
        return {m: {label: row[key] * scale for label, row in rows.items()} for m, rows in models.items()}

    for name, predicted in data["predicted"].items():
        where, of = f"{data['devices'][name]}, predicted", partial(column, predicted["models"])
        dotted(f"throughput_{name}", of("speedup"), title=f"Throughput over FP32: {where}", **ratio)
        axis = "inserted Casts (logarithmic)"
        dotted(f"casts_{name}", of("casts"), title=f"Casts: {where}", axis=axis, logarithmic=True)
        title, axis = f"Tensor-core utilization: {where}", "FP16 nodes on tensor cores, % of the step"
        dotted(f"tensor_cores_{name}", of("tensor_core_share", 100), title=title, axis=axis)
        parts = {"graph rewriting": "rewriting", "padding": "padding"}
        bars = {
            f"{TITLES[model]}, {label}": {part: 100 * rows[label][key] for part, key in parts.items()}
            for model, rows in predicted["models"].items()
            for label in (CAMPO, OPTIMAL)
            if label in rows and TF_AMP in rows
        }
        title = f"Where throughput over TF_AMP comes from: {where}"
        axis = "step saved, % of TF_AMP's step (below 0: lost)"
        written.append(folder / f"campo_eval_breakdown_{name}.svg")
        stacked(bars, [*parts], written[-1], title=title, axis=axis)
    for provider, measured in data["measured"].items():
        medians = {
            model: {label: r["speedup"]["median"] for r in rows if r["speedup"] for label in r["labels"]}
            for model, rows in measured["rows"].items()
        }
        title = f"Throughput over FP32, measured on {measured['machine']['device']} ({provider})"
        dotted(f"throughput_measured_{provider}", medians, title=title, **ratio)
    return written
