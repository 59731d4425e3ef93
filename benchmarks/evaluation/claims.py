"""What the paper claims, held against what is predicted here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from evaluation.findings import Findings, Predicted
from evaluation.predicted import PredictedRow
from evaluation.strategies import CAMPO, OPTIMAL, TF_AMP


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What a strategy saves of TF_AMP's step, in percent of it, by where it comes from."""

    rewriting: float
    padding: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.rewriting + self.padding


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement of the paper, and what the figures here say.

    Parameters
    ----------
    paper
        What the paper says, with its section.
    ours
        What the figures here are.
    verdict
        Whether they agree.
    """

    paper: str
    ours: str
    verdict: str


def split_gain(row: PredictedRow, tf_amp: PredictedRow) -> Gain:
    """Split what a strategy saves over TF_AMP as Figure 8 does: padding off, then on.

    Examples
    --------
    A step of 100 us under TF_AMP that takes 80 us without padding and 75 us with it: 20 % and 5 %.
    """
    whole = tf_amp.step_us / 100
    return Gain(
        rewriting=(tf_amp.step_us - row.unpadded_us) / whole,
        padding=(row.unpadded_us - row.step_us) / whole,
    )


def ratio_gain(row: PredictedRow, tf_amp: PredictedRow) -> float:
    """Throughput over TF_AMP's, minus 1, in percent."""
    return 100 * (tf_amp.step_us / row.step_us - 1)


def fewer_casts(row: PredictedRow, tf_amp: PredictedRow) -> float | None:
    """Casts less than TF_AMP's, in percent of its; None where it has none."""
    return 100 * (1 - row.casts / tf_amp.casts) if tf_amp.casts else None


def more_tensor_cores(row: PredictedRow, tf_amp: PredictedRow) -> float | None:
    """Tensor-core utilization over TF_AMP's, minus 1, in percent; None where TF_AMP uses none."""
    return 100 * (row.tensor_core_share / tf_amp.tensor_core_share - 1) if tf_amp.tensor_core_share else None


def claims_of(findings: Findings) -> tuple[Claim, ...]:
    """Hold the paper's claims against the predictions, where there are any."""
    found = []
    for name, title, mean, most in (
        ("rtx2080ti", "RTX 2080 Ti", 20.8, 24.5),
        ("v100", "V100", 20.9, 23.4),
    ):
        if _has(findings, name, CAMPO, TF_AMP):
            found += _on_device(findings.predicted[name], title, mean, most)
    if _has(findings, "v100", CAMPO) and _has(findings, "rtx2080ti", CAMPO):
        found.append(_more_low_on_v100(findings))
    found += _unmeasured(findings)
    return tuple(found)


def _on_device(predicted: Predicted, title: str, mean: float, most: float) -> list[Claim]:
    speedups = [row.speedup for rows in predicted.values() for row in (rows[TF_AMP], rows[CAMPO])]
    return [
        Claim(
            paper=f"{title}: TF_AMP and Campo run 1.28 to 3.05 times as fast as FP32 (7.2)",
            ours=f"{min(speedups):.2f} to {max(speedups):.2f} times",
            verdict=_verdict([100 * (speedup - 1) for speedup in speedups]),
        ),
        _against_tf_amp(
            predicted,
            f"{title}: Campo's throughput is {mean} % above TF_AMP's on average, {most} % at most (7.2)",
            ratio_gain,
        ),
        _against_tf_amp(
            predicted,
            f"{title}: Campo writes 27.7 % fewer Casts than TF_AMP on average, 31.3 % at most (7.3)",
            fewer_casts,
        ),
        _against_tf_amp(
            predicted,
            f"{title}: Campo's tensor-core utilization is 29.4 % above TF_AMP's on average, 37.9 % at most "
            "(7.3)",
            more_tensor_cores,
        ),
        _rewriting(predicted, title),
    ]


def _against_tf_amp(
    predicted: Predicted, paper: str, of: Callable[[PredictedRow, PredictedRow], float | None]
) -> Claim:
    campo = _compared(predicted, CAMPO, of)
    if not campo:
        return Claim(paper=paper, ours="nothing to compare with", verdict="not judged")
    ours = f"campo {fmean(campo):+.1f} % on average ({min(campo):+.1f} to {max(campo):+.1f} %)"
    if optimal := _compared(predicted, OPTIMAL, of):
        ours += f"; optimal {fmean(optimal):+.1f} % ({min(optimal):+.1f} to {max(optimal):+.1f} %)"
    return Claim(paper=paper, ours=ours, verdict=_verdict(campo))


def _compared(
    predicted: Predicted, label: str, of: Callable[[PredictedRow, PredictedRow], float | None]
) -> list[float]:
    values = [of(rows[label], rows[TF_AMP]) for rows in predicted.values() if label in rows]
    return [value for value in values if value is not None]


def _rewriting(predicted: Predicted, title: str) -> Claim:
    paper = (
        f"{title}: 84.5 % of what Campo wins over TF_AMP is from graph rewriting, the rest from padding (7.3)"
    )
    gains = [split_gain(rows[CAMPO], rows[TF_AMP]) for rows in predicted.values()]
    winners = [gain for gain in gains if gain.total > 0]
    if not winners:
        return Claim(paper=paper, ours="campo wins on no model", verdict="no")
    shares = [100 * gain.rewriting / gain.total for gain in winners]
    return Claim(
        paper=paper,
        ours=f"campo {fmean(shares):.1f} % on average, where it wins, on {len(shares)} of {len(gains)}",
        verdict=_verdict([share - 50 for share in shares]),
    )


def _more_low_on_v100(findings: Findings) -> Claim:
    theirs = findings.predicted["rtx2080ti"]
    both = [model for model in findings.predicted["v100"] if model in theirs]
    v100 = sum(findings.predicted["v100"][model][CAMPO].low_nodes for model in both)
    turing = sum(theirs[model][CAMPO].low_nodes for model in both)
    return Claim(
        paper="Campo runs 10.4 % more operations on tensor cores on the V100 than on the RTX 2080 Ti (7.3)",
        ours=f"{v100} nodes in FP16 on the V100, {turing} on the RTX 2080 Ti, over the "
        f"{len(both)} graphs that both have",
        verdict="yes" if v100 > turing else "no",
    )


def _unmeasured(findings: Findings) -> list[Claim]:
    where = "not measured on a GPU" if "cuda" not in findings.measured else "see the measurements"
    return [
        Claim(
            paper="Predictions are 5.8 % off over 143 operations, below 5 % for five common ones (7.5)",
            ours=where,
            verdict="not judged",
        ),
        Claim(
            paper="At most 7 operations a model, under 1.5 % of all, are put into FP16 by mistake (7.5)",
            ours=where,
            verdict="not judged",
        ),
        Claim(
            paper="Campo trains 21.4 % more samples per joule than TF_AMP on average, 24.2 % at most (7.6)",
            ours=where,
            verdict="not judged",
        ),
    ]


def _verdict(values: Sequence[float]) -> str:
    """Whether the direction is the paper's: for every value, on average, or not.

    Examples
    --------
    >>> _verdict([1.0, 2.0]), _verdict([-1.0, 2.0]), _verdict([-2.0, 1.0])
    ('yes', 'on average', 'no')
    """
    if all(value > 0 for value in values):
        return "yes"
    return "on average" if fmean(values) > 0 else "no"


def _has(findings: Findings, name: str, *labels: str) -> bool:
    rows = findings.predicted.get(name, {})
    return bool(rows) and all(label in found for found in rows.values() for label in labels)
