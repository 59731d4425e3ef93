"""The mark an optimized graph carries, so that optimizing it again changes nothing.

A mixed graph looks to a planner like a graph with free casts in it; planned again, some of its
FP32 nodes would now pay. The stamp says that this very graph is already a decision.
"""

import hashlib
import json
from dataclasses import dataclass

import onnx

from campo_onnx.files.codec import DecodeError, from_json, from_plain, to_plain
from campo_onnx.ir.proto import metadata, set_metadata

STAMP_KEY = "campo_onnx"
"""Key of the stamp among the model's metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """The decision that a written graph carries."""

    strategy: str
    lists: str
    device: str
    low: str
    digest: str  # structure_digest of the graph as written; another one means it was edited since
    # fp32_us, predicted_us: predicted step before and after; None in graphs written before version 0.2.
    fp32_us: float | None = None
    predicted_us: float | None = None
    low_nodes: int | None = None
    casts: int | None = None
    captured: bool = False  # whether it was planned for a step that runs as a captured CUDA graph
    runtime: str = "onnxruntime"


def structure_digest(graph: onnx.GraphProto) -> str:
    """Fingerprint of nodes, their order, edges and attributes."""
    digest = hashlib.sha256()
    for node in graph.node:
        row = [node.op_type, node.domain, node.name, list(node.input), list(node.output)]
        digest.update(json.dumps(row).encode())
        for attribute in sorted(node.attribute, key=lambda a: a.name):
            digest.update(attribute.SerializeToString(deterministic=True))
    return digest.hexdigest()


def read_stamp(model: onnx.ModelProto) -> Stamp | None:
    """Return the stamp of a model, or None when it has none or was edited since."""
    try:
        stamp = from_plain(from_json(metadata(model, STAMP_KEY) or ""), Stamp)
    except DecodeError:
        return None  # there is none, or another version wrote it: plan afresh
    return stamp if stamp.digest == structure_digest(model.graph) else None


def write_stamp(model: onnx.ModelProto, stamp: Stamp) -> None:
    """Put the stamp into the model, in place of an older one."""
    set_metadata(model, STAMP_KEY, json.dumps(to_plain(stamp), sort_keys=True))
