"""Which pictures there are, and what is in each."""

from collections.abc import Callable, Mapping
from pathlib import Path

from evaluation.claims import split_gain
from evaluation.figures import Values, dots, stacked
from evaluation.findings import Findings, Measured, Predicted
from evaluation.models import TITLES
from evaluation.predicted import PredictedRow
from evaluation.strategies import CAMPO, OPTIMAL, STRATEGIES, TF_AMP

from campo_onnx.devices.datasheet import device

SERIES = tuple(label for label in STRATEGIES if label != "fp32")


def draw(findings: Findings, folder: Path) -> tuple[str, ...]:
    """Draw everything that is on record; return the names of the files."""
    written = []
    for name, predicted in findings.predicted.items():
        for kind, paint in _KINDS.items():
            path = folder / f"campo_eval_{kind}_{name}.svg"
            paint(predicted, f"{device(name).title}, predicted", path)
            written.append(path.name)
    for provider, measured in findings.measured.items():
        path = folder / f"campo_eval_throughput_measured_{provider}.svg"
        dots(
            _speedups(measured),
            SERIES,
            path,
            title=f"Throughput over FP32, measured on {measured.machine['device']} ({provider})",
            axis="times FP32's throughput (right is better)",
            reference=1.0,
        )
        written.append(path.name)
    return tuple(written)


def _throughput(predicted: Predicted, where: str, path: Path) -> None:
    dots(
        _values(predicted, lambda row: row.speedup),
        SERIES,
        path,
        title=f"Throughput over FP32: {where}",
        axis="times FP32's throughput (right is better)",
        reference=1.0,
    )


def _casts(predicted: Predicted, where: str, path: Path) -> None:
    dots(
        _values(predicted, lambda row: float(row.casts)),
        SERIES,
        path,
        title=f"Casts: {where}",
        axis="inserted Casts (logarithmic)",
        logarithmic=True,
    )


def _tensor_cores(predicted: Predicted, where: str, path: Path) -> None:
    dots(
        _values(predicted, lambda row: 100 * row.tensor_core_share),
        SERIES,
        path,
        title=f"Tensor-core utilization: {where}",
        axis="FP16 nodes on tensor cores, % of the step",
    )


def _breakdown(predicted: Predicted, where: str, path: Path) -> None:
    values = {}
    for model, rows in predicted.items():
        for label in (CAMPO, OPTIMAL):
            if label in rows and TF_AMP in rows:
                gain = split_gain(rows[label], rows[TF_AMP])
                values[f"{TITLES[model]}, {label}"] = {
                    "graph rewriting": gain.rewriting,
                    "padding": gain.padding,
                }
    stacked(
        values,
        ("graph rewriting", "padding"),
        path,
        title=f"Where throughput over TF_AMP comes from: {where}",
        axis="step saved, % of TF_AMP's step (below 0: lost)",
    )


_KINDS: Mapping[str, Callable[[Predicted, str, Path], None]] = {
    "throughput": _throughput,
    "casts": _casts,
    "tensor_cores": _tensor_cores,
    "breakdown": _breakdown,
}


def _values(predicted: Predicted, of: Callable[[PredictedRow], float]) -> Values:
    return {
        TITLES[model]: {label: of(row) for label, row in rows.items() if label in SERIES}
        for model, rows in predicted.items()
    }


def _speedups(measured: Measured) -> Values:
    return {
        TITLES[model]: {
            label: row["speedup"]["median"]
            for label, row in rows.items()
            if label in SERIES and row["speedup"] is not None
        }
        for model, rows in measured.rows.items()
    }
