"""The page of :mod:`gpu_session`: what its steps found, as Markdown."""

import json
from typing import Any

from gpu_call import Session

from campo_onnx.calibrate.calibration import Calibration, load_calibration
from campo_onnx.calibrate.fit import METHODS, PAPER_ACCURACY
from campo_onnx.ops.precision import Precision

STEP = ".step.json"
"""How the files of finished steps end."""


def report(session: Session) -> str:
    """Put the results of all finished steps into one page."""
    facts = {
        path.name.removesuffix(STEP): json.loads(path.read_text(encoding="utf-8"))
        for path in session.folder.glob(f"*{STEP}")
    }
    here = session.bench.machine
    software = [f"ONNX Runtime {here.ort}"]
    if here.provider == "cuda":
        software += [f"driver {here.driver}", f"CUDA {here.cuda}", f"TF32 {'on' if here.tf32 else 'off'}"]
    else:
        software += [f"threads per node: {here.threads}"]
    lines = [
        f"# Calibration of {here.device} ({here.provider})",
        "",
        f"{', '.join(software)}. Written by `benchmarks/gpu_session.py`.",
    ]
    for precision in (Precision.FP16, Precision.BF16):
        made = [session.calibration_path(precision, full=full) for full in (True, False)]
        best = next((path for path in made if path.exists()), None)
        if best is not None:
            lines += _calibration_lines(load_calibration(best), facts, best.name)
    for name, step in sorted(facts.items()):
        if name.startswith("profile_") and "result" in step:
            lines += _profile_lines(name.removeprefix("profile_"), step)
    for name, lines_of in (
        ("launches", _launch_lines),
        ("weight_gradient", _gradient_lines),
        ("counters", _counter_lines),
        ("alignment", _alignment_lines),
    ):
        if name in facts and "result" in facts[name]:
            lines += lines_of(facts[name])
    failed = {name: step["failure"] for name, step in sorted(facts.items()) if "failure" in step}
    if failed:
        lines += ["", "## What failed", "", *(f"- {name}: {why}" for name, why in failed.items())]
    return "\n".join(lines) + "\n"


def _calibration_lines(made: Calibration, facts: dict[str, Any], file: str) -> list[str]:
    is_quick, is_bf16 = ".quick." in file, made.precision is Precision.BF16
    step = facts.get("calibration" + ("_bf16" if is_bf16 else "") + ("_quick" if is_quick else ""), {})
    load = ", ".join(f"{value:.1f}" for value in step.get("load_average", ()))
    names = [method.name for method in METHODS]
    lines = [
        "",
        f"## M_A (Eq. 3) on held-out shapes, {made.precision.value}",
        "",
        f"Measured {made.measured_at}; in {step.get('seconds', 0):.0f} s (the last call); load average of "
        f"the machine meanwhile {load}. Times are medians of the faster half of the repeats. Shapes: fitted "
        '+ held out. "In use" is the fit that did best in cross-validation within the fitted shapes.',
        "",
        f"| operator | shapes | in use | {' | '.join(names)} | one model for all | roofline "
        "| FP32 from shapes |",
        "|---|--:|--:|" + "--:|" * len(names) + "--:|--:|--:|",
    ]
    for entry in made.entries:
        scores = entry.scores
        figures = [scores.chosen, *(scores.by_method[n] for n in names), scores.general, scores.roofline]
        name = f"{entry.op}, tensor cores" if entry.on_tensor_cores else entry.op
        cells = " | ".join(f"{figure:.1%}" for figure in [*figures, scores.fp32])
        lines.append(f"| {name} | {entry.fitted}+{scores.shapes} | {cells} |")
    means = [
        made.score,
        *(made.mean(lambda s, n=n: s.by_method[n]) for n in names),
        made.mean(lambda s: s.general),
        made.mean(lambda s: s.roofline),
        made.mean(lambda s: s.fp32),
    ]
    lines += [
        f"| **all** | | {' | '.join(f'{mean:.1%}' for mean in means)} |",
        "",
        f"The paper reports {PAPER_ACCURACY:.1%} over its 143 operators on its GPUs.",
        "",
        f"Cast (Eq. 1): {made.cast.r_us * 1e6:.1f} us per million elements + {made.cast.c_i_us:.2f} us, "
        f"M_A {made.cast_score:.1%}; fitted to microseconds as in the paper, {made.cast_paper_score:.1%}.",
        "",
        *(f"- {op}: {why}" for op, why in made.failures.items()),
    ]
    return lines


def _profile_lines(name: str, step: dict[str, Any]) -> list[str]:
    result = step["result"]
    share = result["nodes_us"] / result["step_us"]
    accounted = result["accounted"]
    same_step = "" if accounted is None else f" Within one and the same step: {accounted:.1%}."
    load = ", ".join(f"{value:.1f}" for value in step["load_average"])
    return [
        "",
        f"## Profile of {name}",
        "",
        f"{result['nodes']} nodes, {result['not_measured']} not measured. Sum of the nodes' median times "
        f"{result['nodes_us'] / 1000:.1f} ms, the runtime's own median step "
        f"{result['step_us'] / 1000:.1f} ms: {share:.1%}.{same_step} Load average of the machine: {load}.",
        "",
        "Measured: " + ", ".join(f"{how} {n}" for how, n in result.get("measured", {}).items()) + ".",
        *(f"{note}" for note in result.get("notes", ())),
        "",
        "| operator | nodes | ms |",
        "|---|--:|--:|",
        *(f"| {row['op']} | {row['nodes']} | {row['fp32_us'] / 1000:.1f} |" for row in result["operators"]),
    ]


def _launch_lines(step: dict[str, Any]) -> list[str]:
    rows = [f"| {name} | {us:.2f} |" for name, us in step["result"].items()]
    return ["", "## A node that does next to nothing", "", "| node | us |", "|---|--:|", *rows]


def _gradient_lines(step: dict[str, Any]) -> list[str]:
    return [
        "",
        "## Weight gradient of a 3x3 convolution",
        "",
        "One Conv whose kernels are as large as images, or nine matrix products (slices and sums apart).",
        "",
        "| batch | channels | size | Conv FP32 us | Conv low us | nine products FP32 us | low us |",
        "|--:|--:|--:|--:|--:|--:|--:|",
        *(
            f"| {row['batch']} | {row['channels']} | {row['size']} | {row['conv']['fp32_us']:.1f} "
            f"| {row['conv']['low_us']:.1f} | {9 * row['one_of_nine_products']['fp32_us']:.1f} "
            f"| {9 * row['one_of_nine_products']['low_us']:.1f} |"
            for row in step["result"]
        ),
    ]


def _counter_lines(step: dict[str, Any]) -> list[str]:
    lines = ["", "## Hardware counters", ""]
    for name, found in step["result"].items():
        if isinstance(found, dict):
            text = ", ".join(f"{metric} {value:.4g}" for metric, value in found.items())
        else:
            text = "not measured" if found is None else f"{found:.1%}" if isinstance(found, float) else found
        lines.append(f"- {name}: {text}")
    return lines


def _alignment_lines(step: dict[str, Any]) -> list[str]:
    return [
        "",
        "## Alignment of matrix products",
        "",
        "| M | K | N | FP32 us | low us |",
        "|--:|--:|--:|--:|--:|",
        *(
            f"| {row['m']} | {row['k']} | {row['n']} | {row['fp32_us']:.1f} | {row['low_us']:.1f} |"
            for row in step["result"]
        ),
    ]
