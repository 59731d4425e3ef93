"""The page: every figure of the paper's section 7 that is on record, predictions and measurements apart."""

from collections.abc import Iterator, Sequence

import onnx
from evaluation import prose, tables
from evaluation.account import account_of
from evaluation.claims import claims_of
from evaluation.findings import PROVIDERS, Findings, Measured
from evaluation.models import FULL, SMALL
from evaluation.node_times import CAST
from evaluation.tables import NOT_MEASURED

from campo_onnx import __version__
from campo_onnx.devices.datasheet import device


def page(findings: Findings, pictures: Sequence[str]) -> str:
    """Write the page as Markdown.

    Parameters
    ----------
    findings
        What is on record.
    pictures
        Names of the SVG files beside the page.
    """
    lines = [prose.INTRODUCTION, *_predictions(findings, frozenset(pictures))]
    for provider in PROVIDERS:
        lines += ["", f"## Measured: {_TITLES[provider]}", ""]
        measured = findings.measured.get(provider)
        if measured is None:
            lines += [_absent(provider)]
        else:
            lines += [*_measurements(measured, frozenset(pictures))]
    lines += [*_peers(findings), *_updates(findings), *_account(findings)]
    return "\n".join(lines).rstrip() + "\n"


_TITLES = {"cuda": "GPU (CUDA provider)", "cpu": "CPU"}


def _absent(provider: str) -> str:
    figures = "Figures 4, 5 (throughput), 7 (tensor-core utilization), 8, 9 and 10 (energy)"
    return f"{figures}: {NOT_MEASURED}. Run `python benchmarks/campo_eval.py --device {provider}`."


def _predictions(findings: Findings, pictures: frozenset[str]) -> Iterator[str]:
    sources = sorted(
        {r.source for d in findings.predicted.values() for rows in d.values() for r in rows.values()}
    )
    titles = {"datasheet": "estimates from public figures of the devices", "model": "shipped calibrations"}
    yield "## Predicted"
    yield ""
    yield (
        f"Source: {', '.join(titles.get(s, s) for s in sources) or 'none'}; campo-onnx {__version__}, onnx "
        f"{onnx.__version__}. No device was used, nothing here was measured."
    )
    for name in findings.predicted:
        figure = {"rtx2080ti": "Figure 4", "v100": "Figure 5"}.get(name, "Not in the paper")
        yield from ("", f"### {figure}: throughput, {device(name).title}", "")
        yield from _picture(f"campo_eval_throughput_{name}.svg", "Throughput over FP32", pictures)
        yield from ("Throughput over FP32:", "", *tables.over_fp32(findings.predicted[name]), "")
        yield from (
            "Throughput over TF_AMP (`tf-amp tf115`):",
            "",
            *tables.over_tf_amp(findings.predicted[name]),
            "",
        )
        yield from ("Predicted step and samples per second:", "", *tables.samples_per_s(findings, name))
    yield from ("", "### Figure 6: Casts", "")
    yield "Casts inserted / nodes in FP16. Casts that the exported graph has itself are not counted."
    for name, predicted in findings.predicted.items():
        yield from ("", f"{device(name).title}:", "")
        yield from _picture(f"campo_eval_casts_{name}.svg", "Casts", pictures)
        yield from tables.casts(predicted)
    yield from ("", "### Figure 7: tensor-core utilization", "")
    yield prose.TENSOR_CORES.rstrip()
    for name, predicted in findings.predicted.items():
        yield from ("", f"{device(name).title}:", "")
        yield from _picture(f"campo_eval_tensor_cores_{name}.svg", "Tensor-core utilization", pictures)
        yield from tables.tensor_cores(predicted)
    yield from ("", "### Figure 8: graph rewriting and padding", "")
    yield prose.BREAKDOWN.rstrip()
    for name, predicted in findings.predicted.items():
        yield from ("", f"{device(name).title}:", "")
        yield from _picture(f"campo_eval_breakdown_{name}.svg", "Graph rewriting and padding", pictures)
        yield from tables.breakdown(predicted)
    yield from ("", prose.FIGURE_9_PREDICTED, prose.FIGURE_10_PREDICTED.rstrip())


def _measurements(measured: Measured, pictures: frozenset[str]) -> Iterator[str]:
    machine = measured.machine
    software = [f"ONNX Runtime {machine['ort']}"]
    if measured.provider == "cuda":
        software += [f"driver {machine['driver']}", f"CUDA {machine['cuda']}"]
        software += [f"TF32 {'on' if machine['tf32'] else 'off'}"]
    else:
        software += [f"{machine['threads']} thread" + "s" * (machine["threads"] > 1)]
    yield (
        f"Source: interleaved steps on {machine['device']}; {', '.join(software)}; campo-onnx {__version__}; "
        f"{measured.measured_at}; load average up to {measured.load_average}. Variants: "
        f"{'small ones' if measured.variant == SMALL else 'full size'}; planned for "
        f"{device(measured.planned_for).title}. Medians with 95 % intervals."
    )
    if measured.provider == "cpu":
        yield from ("", prose.CPU_NOTICE.rstrip())
    yield from ("", "### Figures 4 to 6: throughput and Casts", "")
    yield from _picture(f"campo_eval_throughput_measured_{measured.provider}.svg", "Throughput", pictures)
    yield "Strategies that decide alike share a graph and its figures."
    yield from ("", *tables.measured_throughput(measured))
    shown = (
        ("Figure 7: tensor-core utilization", tables.measured_tensor_cores(measured), NOT_MEASURED),
        (
            "Figure 8: graph rewriting and padding",
            tables.measured_breakdown(measured),
            "no strategy pads anything in these graphs",
        ),
        ("Figure 10: energy", tables.measured_energy(measured), measured.energy_from or NOT_MEASURED),
    )
    for title, lines, otherwise in shown[:2]:
        yield from ("", f"### {title}", "", *(lines or [f"{otherwise[:1].upper()}{otherwise[1:]}."]))
    yield from ("", "### Figure 9: accuracy of predictions", "", *_accuracy(measured))
    for title, lines, otherwise in shown[2:]:
        yield from ("", f"### {title}", "", *(lines or [f"{otherwise[:1].upper()}{otherwise[1:]}."]))


def _accuracy(measured: Measured) -> Iterator[str]:
    if not measured.times:
        yield f"{NOT_MEASURED.capitalize()}."
        return
    yield prose.NODES.rstrip()
    yield from ("", *tables.node_accuracy(time for times in measured.times.values() for time in times))
    yield from ("", "Which precision is predicted to be the faster one, Casts apart (section 7.5):", "")
    yield from tables.node_mispredictions({m: times for m, times in measured.times.items() if m != CAST})


def _peers(findings: Findings) -> Iterator[str]:
    yield from ("", "## Other converters on the same training steps", "")
    yield prose.PEERS.rstrip()
    for variant, title in ((FULL, "Full size, the V100's batch sizes"), (SMALL, "Small variants")):
        lines = tables.peers(findings, variant)
        yield from ("", f"### {title}", "", *(lines or [f"{NOT_MEASURED.capitalize()}."]))
        if errors := tables.peer_errors(findings, variant):
            yield from ("", "What went wrong, the first line of it:", "", *errors)


def _updates(findings: Findings) -> Iterator[str]:
    yield from ("", "## What FP16 does to the weights' update", "")
    if not findings.updates:
        yield f"{NOT_MEASURED.capitalize()}."
        return
    yield prose.UPDATES.rstrip()
    yield from ("", *tables.updates(findings))


def _account(findings: Findings) -> Iterator[str]:
    claims = claims_of(findings)
    yield from ("", "## The paper's claims and our predictions", "", prose.ACCOUNT)
    yield from tables.table(
        ["the paper", "predicted here", "agrees"],
        ([claim.paper, claim.ours, claim.verdict] for claim in claims),
        left=3,
    )
    if account := account_of(findings):
        yield from ("", "In words:", "", *(f"- {line}" for line in account))


def _picture(name: str, title: str, pictures: frozenset[str]) -> Iterator[str]:
    if name in pictures:
        yield from (f"![{title}]({name})", "")
