"""Tables of what :mod:`export` found, put between markers of a document whose prose stays."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from campo_onnx.files import write_text

Found = Mapping[str, Any]

TITLES = {
    "alexnet": "AlexNet",
    "vgg16": "VGG-16",
    "resnet50": "ResNet-50",
    "inception3": "Inception v3",
    "dcgan_generator": "DCGAN, generator",
    "dcgan_discriminator": "DCGAN, discriminator",
    "bert_large": "BERT-large, 384 tokens",
}
COSTS = ("nodes", "file", "export", "ORT load", "memory", "step")


def write_tables(results: Iterable[Found], document: Path) -> None:
    """Replace what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``."""
    found = list(results)
    text = document.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        content = "\n".join(table(found))
        text, count = pattern.subn(lambda match, new=content: f"{match[1]}{new}\n{match[2]}", text)
        if count != 1:
            raise SystemExit(f"{document} has {count} places for the table {name!r}")
    write_text(text, document)


def taken(found: list[Found]) -> list[str]:
    """Say when and with what the tables were made."""
    days = sorted({job["day"] for job in found})
    day = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    versions = "; ".join(sorted({job["versions"] for job in found}))
    threads, repeats = found[0]["threads"], found[0]["repeats"]
    return [f"{day}; {versions}; CPU provider, {threads} threads; steps: best of {repeats}."]


def forms(found: list[Found]) -> list[str]:
    """Nodes, bytes and seconds of every model, batch and form, without an optimizer."""
    rows = table("model", "batch", "weight gradient", *COSTS)
    for job in jobs(found, "export"):
        if not job["has_update"]:
            form = "no convolution" if job["model"] == "bert_large" else job["form"]
            rows.append(row(TITLES[job["model"]], job["batch"], form, *costs(job)))
    return rows


def stock(found: list[Found]) -> list[str]:
    """Nodes by this exporter and by ``torch.onnx`` alone."""
    rows = table("model", "nodes here", "`torch.onnx` alone")
    for job in jobs(found, "stock"):
        alike = ("model", "batch", "form", "has_update")
        (here,) = (j for j in jobs(found, "export") if all(j[key] == job[key] for key in alike))
        theirs = job["nodes"] or f"fails: no translation of `{job['refused']}`"
        rows.append(row(TITLES[job["model"]], here["nodes"], theirs))
    return rows


def updates(found: list[Found]) -> list[str]:
    """The whole step, with its optimizer, at a small batch and at the paper's."""
    rows = table("model", "optimizer", "batch", *COSTS)
    for job in (*jobs(found, "export"), *jobs(found, "plan")):
        if job["has_update"]:
            rows.append(row(TITLES[job["model"]], job["optimizer"], job["batch"], *costs(job)))
    return [*rows[:2], *sorted(rows[2:], key=_by_model)]


def _by_model(line: str) -> int:
    return next(i for i, title in enumerate(TITLES.values()) if line.startswith(f"| {title} |"))


def plans(found: list[Found]) -> list[str]:
    """What campo-onnx makes of the whole step."""
    columns = "FP16 nodes", "casts", "FP32 ms", "mixed ms", "faster", "optimized in", "nodes", "ORT load"
    rows = table("model", "batch", "device", "strategy", *columns)
    for job in jobs(found, "plan"):
        for plan in job["plans"]:
            fp32_us, mixed_us = plan["fp32_us"], plan["predicted_us"]
            rows.append(
                row(
                    *(TITLES[job["model"]], job["batch"], plan["device"], plan["strategy"], plan["low"]),
                    *(plan["casts"], f"{fp32_us / 1e3:.1f}", f"{mixed_us / 1e3:.1f}"),
                    *(f"{fp32_us / mixed_us:.2f} x", seconds(plan["optimize_s"]), plan["nodes"]),
                    seconds(plan["load_s"]),
                )
            )
    return rows


def correctness(found: list[Found]) -> list[str]:
    """Largest deviations from torch eager."""
    rows = table("model (shallow variant)", "weight gradient", "tensors", "gradients", "new parameters", "by")
    for job in jobs(found, "eager"):
        form = "no convolution" if job["model"] == "bert_large" else job["form"]
        figures = (f"{job[kind]:.1e}" for kind in ("gradients", "parameters"))
        title = TITLES[job["model"]].removesuffix(", 384 tokens")
        rows.append(row(title, form, job["tensors"], *figures, job["optimizer"]))
    return rows


def costs(job: Found) -> tuple[Any, ...]:
    """Give the cells of :data:`COSTS` for one job."""
    step = seconds(job["step_s"]) if job["step_s"] else "not run"
    size, memory = f"{job['file_bytes'] / 1e6:.2f} MB", f"{job['peak_bytes'] / 1e9:.1f} GB"
    return job["nodes"], size, seconds(job["export_s"]), seconds(job["load_s"]), memory, step


def jobs(found: list[Found], kind: str) -> list[Found]:
    """Pick those of one kind."""
    return [job for job in found if job["kind"] == kind]


def seconds(value: float) -> str:
    """Write a time."""
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def table(*columns: str) -> list[str]:
    """Begin a table."""
    return [row(*columns), "|---" * len(columns) + "|"]


def row(*cells: Any) -> str:
    """Write one line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


TABLES: Mapping[str, Callable[[list[Found]], list[str]]] = {
    "taken": taken,
    "forms": forms,
    "stock": stock,
    "updates": updates,
    "plans": plans,
    "correctness": correctness,
}
