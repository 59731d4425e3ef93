"""Which of the paper's claims the predictions agree with, and why not with others, in words."""

from collections.abc import Callable, Mapping
from statistics import fmean

from evaluation.claims import ratio_gain, split_gain
from evaluation.findings import Findings, Predicted
from evaluation.models import TITLES
from evaluation.predicted import PredictedRow
from evaluation.strategies import CAMPO, OPTIMAL, TF_AMP

from campo_onnx.devices.datasheet import device

TF_AMP_OURS = "tf-amp campo"
"""TF_AMP with our lists."""

_FIRST_TRAVERSE = "traverse-1"
_UNJUDGED = (
    "**Accuracy of predictions, mispredictions, energy**: not judged before they are measured on a GPU."
)
_NEEDED = (TF_AMP, TF_AMP_OURS, CAMPO, OPTIMAL)


def account_of(findings: Findings) -> tuple[str, ...]:
    """Say it for the devices that every strategy was predicted for; nothing without the V100."""
    complete = {
        name: predicted
        for name, predicted in findings.predicted.items()
        if all(_can_compare(rows) for rows in predicted.values())
    }
    if "v100" not in complete:
        return ()
    v100 = complete["v100"]
    return (
        f"**Against FP32**: {_pays(complete)}",
        f"**Against TF_AMP**: {_wins(v100)}",
        f"**Why `campo` wins less**: {_why(v100)}",
        f"**Lists**: {_lists(v100)}",
        f"**Casts**: {_casts(v100)}",
        f"**Tensor cores**: {_tensor_cores(v100)}",
        f"**Padding** {_padding(v100)}",
        *(() if "cuda" in findings.measured else (_UNJUDGED,)),
    )


def _can_compare(rows: Mapping[str, PredictedRow]) -> bool:
    """Whether all strategies are there, and TF_AMP does something that others can be held against."""
    return all(label in rows for label in _NEEDED) and rows[TF_AMP].casts > 0 < rows[TF_AMP].tensor_core_share


def _pays(complete: Mapping[str, Predicted]) -> str:
    parts = []
    for name, predicted in complete.items():
        speedups = [rows[label].speedup for rows in predicted.values() for label in (TF_AMP, OPTIMAL)]
        parts.append(f"{min(speedups):.2f} to {max(speedups):.2f} times as fast ({device(name).title})")
    return (
        f"TF_AMP and `optimal` are predicted {', '.join(parts)}. Where FP32 products run as TF32, on tensor "
        "cores already (H200), FP16 has less to win."
    )


def _wins(predicted: Predicted) -> str:
    gains = {
        label: {model: ratio_gain(rows[label], rows[TF_AMP]) for model, rows in predicted.items()}
        for label in (CAMPO, OPTIMAL)
    }
    behind = {
        label: [TITLES[model] for model, gain in found.items() if gain < 0] for label, found in gains.items()
    }
    return (
        "On the V100 the paper has Campo 20.9 % above TF_AMP. With costs, lists and safety rules in common "
        f"`campo` is predicted {fmean(gains[CAMPO].values()):+.1f} % and `optimal` "
        f"{fmean(gains[OPTIMAL].values()):+.1f} %; `campo` is behind TF_AMP on "
        f"{' and '.join(behind[CAMPO]) or 'no model'}, `optimal` on "
        f"{' and '.join(behind[OPTIMAL]) or 'none'}."
    )


def _why(predicted: Predicted) -> str:
    parts = []
    for model, rows in predicted.items():
        missed = rows[CAMPO].missed_us
        first_us = missed.get(_FIRST_TRAVERSE, 0.0)
        parts.append(
            f"{TITLES[model]} {first_us / 1000:.1f} and {(sum(missed.values()) - first_us) / 1000:.1f} ms"
        )
    return (
        "the first traverse judges each product as if it stood alone, with Casts on all of its sides, "
        "although neighbours would be low too and share them. The later traverses add what lies between "
        "products that are low already, or what pays by itself as a group. What FP16 would save, before "
        "Casts, on nodes that `optimal` lowers and `campo` does not, first those that the first traverse "
        f"refused, then all others (V100): {'; '.join(parts)}."
    )


def _lists(predicted: Predicted) -> str:
    return (
        f"TF_AMP itself gains {_mean(predicted, TF_AMP_OURS, ratio_gain):+.1f} % on average (V100) with our "
        "lists instead of TensorFlow 1.15's, because the pieces of a decomposed normalization may then be "
        "low. In the paper's graphs a normalization is one operator, which TensorFlow's lists know: the "
        "baseline `tf-amp tf115` is weaker on decomposed graphs than it is there, and part of what is won "
        "over it here is won by lists."
    )


def _casts(predicted: Predicted) -> str:
    fewer = [
        TITLES[model]
        for model, rows in predicted.items()
        if max(rows[CAMPO].casts, rows[OPTIMAL].casts) < rows[TF_AMP].casts
    ]
    return (
        f"on the V100 `campo` writes {_mean(predicted, CAMPO, _more_casts):+.1f} % and `optimal` "
        f"{_mean(predicted, OPTIMAL, _more_casts):+.1f} % Casts against TF_AMP (the paper: -27.7 %), while "
        f"the time in Casts is {_mean(predicted, CAMPO, _more_cast_time):+.1f} % and "
        f"{_mean(predicted, OPTIMAL, _more_cast_time):+.1f} %. TF_AMP with our lists writes "
        f"{_mean(predicted, TF_AMP_OURS, _more_casts):+.1f} %: the number follows the lists and the grain "
        "of the graph's operators first. Where no normalization is taken apart both may write fewer: they "
        f"do on {' and '.join(fewer) or 'no model'}."
    )


def _tensor_cores(predicted: Predicted) -> str:
    return (
        f"utilization against TF_AMP's is {_mean(predicted, OPTIMAL, _more_share):+.1f} % for `optimal` and "
        f"{_mean(predicted, CAMPO, _more_share):+.1f} % for `campo` on the V100 (the paper: +29.4 %): "
        "products that the first traverse refuses do not run there."
    )


def _padding(predicted: Predicted) -> str:
    gains = {TITLES[model]: split_gain(rows[OPTIMAL], rows[TF_AMP]) for model, rows in predicted.items()}
    most = max(gains, key=lambda title: gains[title].padding)
    return (
        f"saves under `optimal` {fmean(gain.padding for gain in gains.values()):.2f} % of TF_AMP's step on "
        f"average on the V100 (most on {most}, {gains[most].padding:.2f} %), graph rewriting "
        f"{fmean(gain.rewriting for gain in gains.values()):.2f} %. In the paper 15.5 % of what is won "
        "comes from padding; most sizes of these models are multiples of 8 already."
    )


def _more_casts(row: PredictedRow, tf_amp: PredictedRow) -> float:
    return 100 * (row.casts / tf_amp.casts - 1)


def _more_cast_time(row: PredictedRow, tf_amp: PredictedRow) -> float:
    return 100 * (row.cast_us / tf_amp.cast_us - 1)


def _more_share(row: PredictedRow, tf_amp: PredictedRow) -> float:
    return 100 * (row.tensor_core_share / tf_amp.tensor_core_share - 1)


def _mean(predicted: Predicted, label: str, of: Callable[[PredictedRow, PredictedRow], float]) -> float:
    return fmean(of(rows[label], rows[TF_AMP]) for rows in predicted.values())
