"""Graphs as strategies plan them, kept beside a session's results: a device is not lent for planning.

Plans of the paper's six models take minutes. They need no GPU, so that they are made beforehand
(``gpu_session --prepare h200``), and travel with its archive. What is kept was made of the same graph,
for the same target, with the same calibration and version; else it is planned anew. A checkout has one
version whatever its code: begin with an empty folder after a change.
"""

import hashlib
import json
import shutil
from collections.abc import Collection
from dataclasses import replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import onnx

from benchmarks.evaluation.stepped import Candidate, candidates
from benchmarks.evaluation.strategies import FP32
from benchmarks.gpu_machine import LOW, Session
from campo_onnx import __version__
from campo_onnx.calibrate.catalog import file_name, shipped_folder
from campo_onnx.files import write_text
from campo_onnx.ir.importer import import_model

_INDEX = "candidates.json"


def planned(graph: Path, labels: Collection[str], session: Session) -> tuple[Candidate, ...]:
    """Plan a graph for a session's device, or read what was planned for it before.

    Parameters
    ----------
    graph
        The FP32 training step as it was exported.
    labels
        Strategies. FP32, in the form that the device runs, always comes first.
    session
        Device, calibration, and where plans are kept.
    """
    wanted = {FP32, *labels}
    calibrated = session.calibrated
    calibration = calibrated or shipped_folder() / file_name(session.device, LOW)
    folder = session.folder / "plans" / (calibrated.stem if calibrated else "as_shipped") / graph.stem
    origin = {
        "graph": _digest(graph),
        "target": session.device.name,
        "calibration": _digest(calibration) if calibration.is_file() else "",
        "campo_onnx": __version__,
    }
    index = folder / _INDEX
    plans = json.loads(index.read_text(encoding="utf-8")) if index.is_file() else {}
    if plans.get("origin") != origin or not wanted <= set(plans["labels"]):
        _write(folder, candidates(graph, session.device, wanted, calibrated), origin, wanted)
        plans = json.loads(index.read_text(encoding="utf-8"))
    members = (_read(folder, member) for member in plans["members"])
    chosen = (replace(m, labels=tuple(n for n in m.labels if n.split(",")[0] in wanted)) for m in members)
    return tuple(member for member in chosen if member.labels)


def _write(folder: Path, members: Collection[Candidate], origin: Any, labels: Collection[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = []
    for number, member in enumerate(members):
        file = folder / f"{number}.onnx"
        onnx.save(member.imported.model, file)
        figures = {"casts": member.casts, "predicted_us": member.predicted_us}
        rows.append({"file": file.name, "labels": member.labels, **figures})
    text = json.dumps({"origin": origin, "labels": sorted(labels), "members": rows}, indent=1)
    write_text(text + "\n", folder / _INDEX)  # last: what it names is complete


def _read(folder: Path, row: dict[str, Any]) -> Candidate:
    return Candidate(
        labels=tuple(row["labels"]),
        imported=import_model(folder / row["file"]),
        casts=row["casts"],
        predicted_us=row["predicted_us"],
    )


def _digest(path: Path | Traversable) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
