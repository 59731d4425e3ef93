"""Digests of plans and written graphs: shows whether a change of the house changed what it does.

Run ``python tests/golden/digests.py OUT.jsonl GRAPH...`` before and after; ``--compare OLD.jsonl NEW.jsonl``
lists what differs. Interrupted, it goes on where it stopped. ``digests.jsonl`` beside this file holds the
graphs of this repository.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from campo_onnx import Options, Precision, oplists, optimize_model, target
from campo_onnx.errors import CampoError

DEVICES = ("v100", "h200", "a100", "cpu")
STRATEGIES = {
    "optimal": "campo",
    "campo": "campo",
    "tf-amp": "tf115",
    "torch-amp": "pytorch",
    "nvidia-amp": "nvidia",
    "fine-grained": "campo",
    "fp32": "campo",
}
PRECISIONS = (Precision.FP16, Precision.BF16)


def _sha(value: Any) -> str:
    payload = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(payload).hexdigest()[:16]


def digest_of(graph: Path, device_name: str, strategy: str, low: Precision) -> dict[str, Any]:
    """Plan and write one graph; times are held to nine digits, the last ones depend on summation."""
    options = Options(
        target=target(device_name), lists=oplists(STRATEGIES[strategy]), strategy=strategy, low=low
    )
    try:
        result = optimize_model(graph, options)
    except CampoError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    plan = result.plan
    casts = sorted(
        (c.tensor, str(getattr(c.dst, "value", c.dst)), sorted({use.node for use in c.consumers}))
        for c in plan.casts
    )
    pads = sorted((p.node, [[i.position, list(i.ends)] for i in p.inputs]) for p in plan.pads)
    return {
        "low_nodes": len(plan.low_nodes),
        "low": _sha(sorted(plan.low_nodes)),
        "casts": len(casts),
        "cast_rows": _sha(casts),
        "pads": len(pads),
        "pad_rows": _sha(pads),
        "fp32_us": f"{plan.fp32_us:.9g}",
        "predicted_us": f"{plan.predicted_us:.9g}",
        "graph": _sha(result.model.graph.SerializeToString(deterministic=True)),
    }


def cases(graphs: list[Path]) -> Iterator[tuple[str, Path, str, str, Precision]]:
    """Every graph on every device, by every strategy, in both precisions."""
    for graph, device_name, strategy, low in product(graphs, DEVICES, STRATEGIES, PRECISIONS):
        yield f"{graph.stem} {device_name} {strategy} {low.value}", graph, device_name, strategy, low


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Rows of a file by case."""
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {row.pop("case"): row for row in rows}


def differences(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Differences among the cases that both have."""
    for case in old:
        if case in new and old[case] != new[case]:
            fields = (f for f in {**old[case], **new[case]} if old[case].get(f) != new[case].get(f))
            changes = (f"{f} {old[case].get(f)} -> {new[case].get(f)}" for f in fields)
            yield f"{case}: {', '.join(changes)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--compare", action="store_true")
    arguments = parser.parse_args()
    out, *graphs = arguments.files
    if arguments.compare:
        lines = list(differences(read(out), read(graphs[0])))
        print("\n".join(lines) or "no differences")
        sys.exit(bool(lines))
    done = read(out) if out.exists() else {}
    with out.open("a", encoding="utf-8") as file:
        for case, *what in cases(graphs):
            if case not in done:
                file.write(json.dumps({"case": case, **digest_of(*what)}) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
