"""Plan files: one decision a line, with a digest that tells whether somebody edited them."""

import hashlib
import json
from typing import Any, TypeVar

from campo_onnx.errors import PlanMismatchError, UsageError
from campo_onnx.files.codec import DecodeError, Document, from_json, to_json
from campo_onnx.files.document_format import Format
from campo_onnx.optimize.plan.reason import Reason

P = TypeVar("P")

_ROWS = ("casts", "reused", "dropped", "constants", "pads", "decisions")
_DIGEST = "decisions_digest"
_REMEDY = "Write one with: campo-onnx optimize MODEL -o MIXED --plan FILE"


def plan_format(holds: type[P]) -> Format[P]:
    """Describe the file that holds a plan; the class of plans is given, since it reads and writes itself."""
    return Format(
        holds=holds,
        noun="plan",
        kind="campo-onnx plan",
        # 3 says what casts would take with a node in the other precision, 4 how the step runs, 5 where
        # nodes come from, 6 what the document is, 7 the runtime.
        version=7,
        kind_since=6,
        rows=_ROWS,
        older={1: _from_version_1, **dict.fromkeys(range(2, 7), _as_it_is)},
        remedy=_REMEDY,
    )


def encode(plan: P, form: Format[P]) -> str:
    """Write a plan as JSON."""
    document = form.document(plan)
    return to_json({_DIGEST: _digest(document), **document}, _ROWS)


def decode(text: str | bytes, title: str, form: Format[P]) -> P:
    """Read :func:`encode` back."""
    try:
        document = from_json(text)
    except DecodeError as error:
        raise UsageError(f"{title} is not a plan file", why=str(error), remedy=_REMEDY) from None
    if not isinstance(document, dict) or "format_version" not in document:
        raise UsageError(f"{title} is not a plan file", remedy=_REMEDY)
    written = document.pop(_DIGEST, None)
    plan = form.from_document(document, title)
    if document["format_version"] > 1 and written != _digest(document):
        raise PlanMismatchError(
            f"{title} was changed after it was written",
            why="its decisions do not match its digest",
            remedy="Plan the model again; --keep-fp32 and the op lists change what is decided.",
        )
    return plan


def _digest(document: Document) -> str:
    payload = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(payload, digest_size=16).hexdigest()


def _as_it_is(document: Document) -> Document:
    """Versions differ by fields that have a default."""
    return document


def _from_version_1(document: Document) -> Document:
    """Version 1 said what was decided, but not which inputs and outputs change: enough to explain."""
    positionless = -1

    def cast_of(row: Document) -> Document:
        return row | {"consumers": [[node, positionless] for node in row["consumers"]]}

    def decision_of(row: Document) -> Document:
        precision = {"precision": None} if row["precision"] == "-" else {}
        was_low = row["decided_by"] == "graph"
        why: dict[str, Any] = (
            {"decided_by": Reason.ALREADY_LOW.value, "facts": {}}
            if was_low
            else {
                "decided_by": Reason.EARLIER_VERSION.value,
                "facts": {"who": row["decided_by"], "why": row["reason"]},
            }
        )
        fields_left = {k: v for k, v in row.items() if k not in ("reason", "decided_by")}
        return fields_left | precision | why

    return document | {
        "digest": "",
        "casts": [cast_of(row) for row in document["casts"]],
        "decisions": [decision_of(row) for row in document["decisions"]],
    }
