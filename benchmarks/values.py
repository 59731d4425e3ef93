"""Cost of losing no value: low nodes and predicted step with and without the analysis of values.

    python -m benchmarks.values GRAPH... [--devices v100 h200]

Writes results/values.json and .md. Without the analysis, only what reads a constant that FP16 does not hold,
or a scalar input, stays FP32.
"""

import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.pages import arguments, provenance, publish
from campo_onnx import Options, Plan, oplists, target
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.optimize import eligibility
from campo_onnx.optimize.plan.reason import Reason
from campo_onnx.optimize.values.verdicts import value_verdicts
from campo_onnx.planning.pipeline import decide, problem_of

_WITHOUT = frozenset({Reason.OVERFLOW, Reason.UNDERFLOW, Reason.SCALAR_INPUT})
_OF_VALUES = frozenset(
    {
        *(Reason.VALUE_OVERFLOW, Reason.VALUE_UNDERFLOW, Reason.VALUE_ROUNDING, Reason.INTEGERS),
        *(Reason.SQUARES, Reason.LOGARITHM, Reason.UNKNOWN_MASK, Reason.UNSCALED),
        *(Reason.GRADIENT_PRODUCT, Reason.VANISHING_PRODUCT, Reason.SCALED_SUM),
    }
)


def _without(*arguments: Any) -> Any:
    verdicts = value_verdicts(*arguments)
    return {name: verdict for name, verdict in verdicts.items() if verdict.decided_by in _WITHOUT}


def _planned(imported: Imported, options: Options) -> Plan:
    return decide(problem_of(imported, options), imported, options)


def measure(graph: Path, device_name: str) -> dict[str, Any]:
    """Plan a graph with and without the analysis, and time it."""
    imported = import_model(graph)
    options = Options(target=target(device_name), lists=oplists("campo"))
    with mock.patch.object(eligibility, "value_verdicts", _without):
        before = _planned(imported, options)
    ports = problem_of(imported, options).ports
    began = time.process_time()
    value_verdicts(imported, ports, options.low)
    analyzed = time.process_time()
    after = _planned(import_model(graph), options)
    planned = time.process_time()
    reasons = Counter(d.decided_by.value for d in after.decisions if d.decided_by in _OF_VALUES)
    return {
        "graph": graph.stem,
        "device": device_name,
        "fp32_us": before.fp32_us,
        "before": {"low_nodes": len(before.low_nodes), "step_us": before.predicted_us},
        "after": {"low_nodes": len(after.low_nodes), "step_us": after.predicted_us},
        "reasons": dict(sorted(reasons.items())),
        "analysis_s": analyzed - began,
        "planning_s": planned - analyzed,
    }


def main() -> None:
    """Measure every graph on every device."""
    parser = arguments(__doc__)
    parser.add_argument("graphs", nargs="+", type=Path, metavar="GRAPH")
    parser.add_argument("--devices", nargs="+", default=["v100", "h200"])
    options = parser.parse_args()
    rows = [measure(graph, name) for graph in options.graphs for name in options.devices]
    print(*publish("values", {"made": provenance(), "rows": rows}))


if __name__ == "__main__":
    main()
