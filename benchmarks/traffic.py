"""What one step of each of the paper's models launches and moves through memory, FP32 and as planned.

    python -m benchmarks.traffic zoo_out/*.onnx

``make zoo`` writes the graphs. Counted, not measured: nodes that launch a kernel, and the bytes that they
read and write. Writes results/traffic.json and .md.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.pages import made, publish
from campo_onnx import Options, device, oplists, optimize_model
from campo_onnx.optimize.traffic import Traffic, planned_traffic, traffic

DEVICE = "v100"


def row_of(path: Path) -> dict[str, Any]:
    """Count one graph."""
    result = optimize_model(path, Options(device=device(DEVICE), lists=oplists("campo")))
    return {
        "graph": path.stem,
        "fp32": _facts(traffic(result.problem.view)),
        "planned": _facts(planned_traffic(result.problem, result.plan)),
    }


def _facts(found: Traffic) -> dict[str, Any]:
    parts = {"total": found.total, "casts": found.casts}
    parts |= {family.value: moved for family, moved in found.by_family.items()}
    return {name: {"launches": m.launches, "moved_bytes": m.moved_bytes} for name, m in parts.items()}


def main() -> None:
    """Count every graph, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", nargs="+", type=Path)
    rows = [row_of(path) for path in parser.parse_args().graphs]
    print(*publish("traffic", {"made": made(), "device": device(DEVICE).title, "rows": rows}))


if __name__ == "__main__":
    main()
