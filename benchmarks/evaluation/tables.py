"""Markdown tables of what is on record."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from evaluation.claims import ratio_gain, split_gain
from evaluation.findings import Findings, Measured, Predicted
from evaluation.models import TITLES, variant_for
from evaluation.node_times import CAST, NodeTime, mispredictions, scores
from evaluation.peers import PEERS
from evaluation.predicted import PredictedRow
from evaluation.strategies import CAMPO, FP32, OPTIMAL, PADDING, STRATEGIES, TF_AMP, unpadded

NOT_MEASURED = "not measured"
_LONGEST, _KIND = 160, 50
_PARTICULARS = re.compile(r"'[^']*'|\([^()]*\)|\d+")
"""What differs between errors of a kind: names, places, numbers."""

_PREFIX = re.compile(r"^\[\w+\]( : \d+ : \w+ :)? ?(Inference error\(s\): )?")

Lines = list[str]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Lines:
    """Lay out a table; the first `left` columns hold text, the others figures.

    Examples
    --------
    >>> table(["model", "x"], [["VGG-16", "3.20"]])
    ['| model | x |', '|---|--:|', '| VGG-16 | 3.20 |']
    """
    rule = "|" + "|".join(["---"] * left + ["--:"] * (len(head) - left)) + "|"
    return ["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)]


def by_strategy(predicted: Predicted, of: Callable[[PredictedRow, Mapping[str, PredictedRow]], str]) -> Lines:
    """Lay out one figure by model and strategy."""
    labels = [label for label in STRATEGIES if any(label in rows for rows in predicted.values())]
    return table(
        ["model", *labels],
        (
            [TITLES[model], *(of(rows[label], rows) if label in rows else "-" for label in labels)]
            for model, rows in predicted.items()
        ),
    )


def over_fp32(predicted: Predicted) -> Lines:
    """Throughput over FP32's (Figures 4 and 5)."""
    return by_strategy(predicted, lambda row, rows: f"{row.speedup:.2f}")


def over_tf_amp(predicted: Predicted) -> Lines:
    """Throughput over TF_AMP's, in percent."""
    return by_strategy(
        predicted, lambda row, rows: f"{ratio_gain(row, rows[TF_AMP]):+.1f} %" if TF_AMP in rows else "-"
    )


def samples_per_s(findings: Findings, device: str) -> Lines:
    """Samples per second in FP32 and as optimal plans it, with the step and the batch size."""
    rows = []
    for model, found in findings.predicted[device].items():
        batch = findings.batches[variant_for(device), model]
        cells = [
            f"{found[label].step_us / 1000:.1f} ms, {batch / found[label].step_us * 1e6:.0f}/s"
            if label in found
            else "-"
            for label in (FP32, TF_AMP, CAMPO, OPTIMAL)
        ]
        rows.append([TITLES[model], str(batch), *cells])
    return table(["model", "batch", FP32, TF_AMP, CAMPO, OPTIMAL], rows)


def casts(predicted: Predicted) -> Lines:
    """Casts inserted, with the nodes that are in FP16 (Figure 6)."""
    return by_strategy(predicted, lambda row, rows: f"{row.casts} / {row.low_nodes}")


def tensor_cores(predicted: Predicted) -> Lines:
    """Share of the step that FP16 nodes spend on tensor cores (Figure 7)."""
    return by_strategy(predicted, lambda row, rows: f"{row.tensor_core_share:.1%}")


def breakdown(predicted: Predicted) -> Lines:
    """What is saved of TF_AMP's step, by graph rewriting and by padding (Figure 8)."""
    rows = []
    for model, found in predicted.items():
        for label in PADDING:
            if label in found and TF_AMP in found:
                gain = split_gain(found[label], found[TF_AMP])
                share = f"{gain.rewriting / gain.total:.1%}" if gain.total > 0 else "nothing won"
                rows.append(
                    [
                        TITLES[model],
                        label,
                        f"{gain.rewriting:+.2f} %",
                        f"{gain.padding:+.2f} %",
                        str(found[label].pads),
                        share,
                    ]
                )
    head = ["model", "strategy", "graph rewriting", "padding", "products padded", "share of graph rewriting"]
    return table(head, rows, left=2)


def measured_throughput(measured: Measured) -> Lines:
    """Step, throughput and speed-ups of every graph that was stepped."""
    rows = []
    for model, found in measured.rows.items():
        labels: dict[str, list[str]] = {}
        for label, row in found.items():
            labels.setdefault(row["name"], []).append(_title(label))
        for name, shared in labels.items():
            row = found[name]
            rows.append(
                [
                    TITLES[model],
                    ", ".join(shared),
                    _short(row["failure"]) if row["failure"] else _ms(row["step_us"]),
                    _number(row["samples_per_s"], "{:.1f}"),
                    _ratio(row["speedup"]),
                    _ratio(row["over_tf_amp"]) if TF_AMP not in shared else "-",
                    row["verdict"],
                    _number(row["casts"], "{}"),
                ]
            )
    head = ["model", "graph", "step", "samples/s", "x FP32", "x TF_AMP", "against FP32", "Casts"]
    return table(head, rows, left=3)


def measured_breakdown(measured: Measured) -> Lines:
    """Measured throughput over TF_AMP with padding off and on; none where nothing was padded."""
    rows = [
        [
            TITLES[model],
            label,
            _ratio(found[unpadded(label)]["over_tf_amp"]),
            _ratio(found[label]["over_tf_amp"]),
        ]
        for model, found in measured.rows.items()
        for label in PADDING
        if label in found and unpadded(label) in found
    ]
    return table(["model", "strategy", "x TF_AMP, padding off", "padding on"], rows, left=2) if rows else []


def measured_tensor_cores(measured: Measured) -> Lines:
    """Share of the step in which the tensor cores' pipe was busy."""
    rows = [
        [TITLES[model], _title(label), f"{row['tensor_pipe_share']:.1%}"]
        for model, found in measured.rows.items()
        for label, row in found.items()
        if row["tensor_pipe_share"] is not None
    ]
    return table(["model", "graph", "tensor cores busy"], rows, left=2) if rows else []


def measured_energy(measured: Measured) -> Lines:
    """Energy per sample, the whole GPU's."""
    lines = []
    for model, found in measured.rows.items():
        batch = measured.batch[model]
        for label, row in found.items():
            if row["energy_j"] is not None:
                joules, fp32 = row["energy_j"]["median"], found[FP32]["energy_j"]
                ratio = f"{fp32['median'] / joules:.2f}" if fp32 is not None else "-"
                lines.append([TITLES[model], _title(label), f"{joules / batch:.4g}", ratio])
    return (
        table(["model", "graph", "J per sample", "samples per joule, x FP32"], lines, left=2) if lines else []
    )


def node_accuracy(times: Iterable[NodeTime]) -> Lines:
    """M_A (Eq. 3) by operator (Figure 9)."""
    return table(
        ["operator", "distinct nodes", "M_A, FP32 time", "M_A, FP16 time"],
        (
            [score.op, str(score.nodes), _accuracy(score.fp32), _accuracy(score.low)]
            for score in scores(tuple(times))
        ),
    )


def node_mispredictions(times: Mapping[str, tuple[NodeTime, ...]]) -> Lines:
    """Predictions of the faster precision, by model (section 7.5)."""
    rows = []
    for model, found in times.items():
        if model != CAST:
            counts = mispredictions(found)
            rows.append(
                [
                    TITLES[model],
                    str(counts.predicted_faster),
                    str(counts.really_faster),
                    str(counts.predicted_slower),
                    str(counts.really_slower),
                ]
            )
    head = ["model", "predicted faster in FP16", "of them really", "predicted no faster", "of them really"]
    return table(head, rows)


def peers(findings: Findings, variant: str) -> Lines:
    """What the peers make of the graphs of one variant."""
    rows = []
    for (found_variant, peer, model), outcome in findings.peers.items():
        if found_variant != variant:
            continue
        converted = outcome.converted
        if converted is None:
            rows.append([PEERS[peer].title, TITLES[model], "no result", *["-"] * 7])
            continue
        predicted = ", ".join(
            f"{name} {converted.fp32_us[name] / converted.predicted_us[name]:.2f}"
            for name in converted.predicted_us
        )
        rows.append(
            [
                PEERS[peer].title,
                TITLES[model],
                "invalid" if converted.invalid else "valid",
                "does not load" if converted.refused else "loads",
                "kept" if converted.interface_kept else "changed",
                f"{converted.low_nodes} of {converted.nodes}",
                f"{converted.low_loss_nodes} of {converted.loss_nodes}",
                f"{converted.low_update_nodes} of {converted.update_nodes}",
                str(converted.casts),
                predicted or "-",
            ]
        )
    head = ["converter", "model", "onnx.checker", "ONNX Runtime", "interface", "nodes in FP16"]
    head += ["loss nodes in FP16", "update nodes in FP16", "Casts", "predicted x FP32"]
    return table(head, rows, left=5) if rows else []


def peer_errors(findings: Findings, variant: str) -> Lines:
    """First line of what went wrong with the peers, errors of a kind once, with the models they hit."""
    kinds: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for (found_variant, peer, model), outcome in findings.peers.items():
        if found_variant != variant:
            continue
        converted = outcome.converted
        said = {"": outcome.failure}
        if converted is not None:
            said |= {"onnx.checker: ": converted.invalid, "ONNX Runtime: ": converted.refused}
        for who, text in said.items():
            if text:
                message = f"{who}{_PREFIX.sub('', text)}"
                kind = (peer, _PARTICULARS.sub("", message)[:_KIND])
                kinds.setdefault(kind, (message, []))[1].append(TITLES[model])
    return [
        f"- {PEERS[peer].title}: {_short(message)} ({'; '.join(models)})"
        for (peer, _), (message, models) in kinds.items()
    ]


def updates(findings: Findings) -> Lines:
    """Errors of the weights' update, one row a model, one column a graph."""
    labels = list(dict.fromkeys(label for rows in findings.updates.values() for label in rows))
    labels = [label for label in labels if label not in (FP32, *map(unpadded, PADDING))]
    return table(
        ["model", *(_title(label) for label in labels)],
        (
            [TITLES[model], *(_update(rows[label]) if label in rows else "no graph" for label in labels)]
            for model, rows in findings.updates.items()
        ),
    )


def _update(row: Mapping[str, Any]) -> str:
    if "failure" in row:
        return "does not run"
    lost = f", {row['not_finite']} not finite" if row["not_finite"] else ""
    return f"{row['median']:.0e} ({row['worst']:.0e}){lost}"


def _title(label: str) -> str:
    return PEERS[label].title if label in PEERS else label


def _ms(step_us: Mapping[str, float] | None) -> str:
    if step_us is None:
        return "-"
    low, median, high = (step_us[key] / 1000 for key in ("low", "median", "high"))
    return f"{median:.2f} ms ({low:.2f} to {high:.2f})"


def _ratio(value: Mapping[str, float] | None) -> str:
    return "-" if value is None else f"{value['median']:.2f} ({value['low']:.2f} to {value['high']:.2f})"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _accuracy(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _short(text: str) -> str:
    """Shorten a message so that it fits a cell of a table."""
    line = _PREFIX.sub("", text.replace("|", "/").replace("\n", " "))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
