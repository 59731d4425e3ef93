"""The page, its picture, and the table of the README."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.figures import distributions, dots
from benchmarks.measured import NETWORKS, drawn, summary
from benchmarks.measured.learning import PER_OPERATOR, PROFILED
from benchmarks.measured.sides import OF_TORCH, SIDES, THREADS
from benchmarks.pages import RESULTS, cpu_of, head, interval, line, number, provenance, publish
from campo_onnx.errors import UsageError
from campo_onnx.files import write_text

Facts = dict[str, Any]

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
"""Comments around the table of the README."""

_README_SIDES = (*OF_TORCH, "fp32", "tf-amp", "optimal")
_CITING = ("campo_eval", "table1", "population", "cost_models")
_LOADED = 0.5  # things that want a core besides what is measured
_OF_OTHER_KINDS = ("prediction", "learned", "sweeps", "ops", "population", "drawn")
"""Parts of a page about anything but networks at their own batch."""


def publish_measured(
    values: Mapping[str, Facts],
    plans: Mapping[str, Facts | None],
    calibration: str,
    asked: int,
    folder: Path,
    readme: Path | None,
    learned: Facts | None = None,
) -> tuple[Path, ...]:
    """Write page, JSON, picture and the table of the README with what has been measured.

    Parameters
    ----------
    values
        Results by kind and name, such as ``"network resnet18"``.
    plans
        Figures of plans, by network.
    calibration
        What predictions rest on.
    asked
        Random networks that were asked for.
    folder
        Where the page goes.
    readme
        Whose table is written, and beside it the front page of docs/; None for none.
    learned
        Models of costs compared on the measured plans (:func:`benchmarks.measured.learning.learned`).

    Raises
    ------
    UsageError
        If the README lacks the place for the table.
    """
    data = data_of(values, plans, calibration, asked, learned)
    if not data["rows"]:
        return ()
    suffix = suffix_of(data["machine"], folder)
    data |= {"template": "measured", "machine_suffix": suffix} if suffix else {}
    before = folder / f"measured{suffix}.json"
    if all(key.startswith("network ") for key in values) and before.is_file():
        data |= others_of(json.loads(before.read_text(encoding="utf-8")))
    written = publish("measured", data, folder, name=f"measured{suffix}")
    picture, population = (folder / f"measured{suffix}{kind}.svg" for kind in ("", "_population"))
    shown = {row["title"]: {s: r["median"] for s, r in row["over_fp32"].items()} for row in data["rows"]}
    named = {name: {SIDES[s].title: r for s, r in row.items() if s != "fp32"} for name, row in shown.items()}
    series = [side.title for key, side in SIDES.items() if key not in ("fp32", "fine-grained")]
    title = f"Throughput over FP32 on OpenVINO, {cpu_of(data['machine'])}, {data['made']['date']}"
    dots(named, series, picture, title=title, axis="times FP32 (measured)", reference=1.0)
    if data["population"]:
        curves = data["population"]["quantiles"]
        panels = {f"{data['population']['networks']} random networks": curves}
        distributions(panels, population, axis="step, times as fast as in FP32 (measured)")
        written = (*written, population)
    if folder.resolve() == RESULTS.resolve():
        pages.main(_CITING)
    if readme is None:
        return (*written, picture)
    front = readme.parent / "docs" / "index.md"
    texts = {readme: table_of(data)} | ({front: front_of(data)} if front.exists() else {})
    for page, text in texts.items():
        write_text(with_table(page.read_text(encoding="utf-8"), text), page)
    return (*written, picture, *texts)


def suffix_of(machine: Facts, folder: Path) -> str:
    """Give the end of the names of a machine's page: nothing for the main page, or where there is none."""
    main = folder / "measured.json"
    device = json.loads(main.read_text(encoding="utf-8"))["machine"].get("device") if main.is_file() else None
    return "" if device in (None, machine.get("device")) else f"_{machine['device']}"


def data_of(
    values: Mapping[str, Facts],
    plans: Mapping[str, Facts | None],
    calibration: str,
    asked: int,
    learned: Facts | None = None,
) -> Facts:
    """Gather everything that the page shows."""
    by_kind: dict[str, dict[str, Any]] = {kind: {} for kind in ("network", "batch", "drawn", "ops", "layers")}
    for key, value in values.items():
        kind, _, name = key.partition(" ")
        if kind in by_kind:  # profiles are in `learned`
            by_kind[kind][name] = value

    def rows(kind: str) -> list[Facts]:
        return [
            summary.network_row(name, timed, planned)
            for name, timed in by_kind[kind].items()
            if (planned := plans.get(name)) is not None and timed["rounds_ms"].get("fp32")
        ]

    networks, batches, random = rows("network"), rows("batch"), rows("drawn")
    every = [*by_kind["network"].values(), *by_kind["batch"].values(), *by_kind["drawn"].values()]
    ops = next(iter(by_kind["ops"].values()), None)
    return {
        "made": every[0]["made"] if every else provenance("torch", "openvino", "transformers"),
        "machine": every[0]["machine"] if every else {},
        "times": sorted(value["measured_at"] for value in every),
        "threads": THREADS,
        "calibration": calibration,
        "sides": {
            side: kind.title
            for side, kind in SIDES.items()
            if any(side in row["ms"] or side in row["failures"] for row in networks)
        },
        "rows": [{key: value for key, value in row.items() if key != "rounds_ms"} for row in networks],
        "loaded": [row["title"] for row in networks if (row["others_running"] or 0.0) > _LOADED],
        "missing": [title for name, title in NETWORKS.items() if name not in by_kind["network"]],
        "casts": summary.casts(networks) if networks else {},
        "over_tf_amp": summary.over_tf_amp(networks),
        "over_torch": summary.over_torch(networks),
        "prediction": summary.prediction([*networks, *batches, *random]),
        "learned": learned,
        "sweeps": _sweeps(networks, batches),
        "ops": None if ops is None else summary.single_ops(ops),
        "population": drawn.population(random, next(iter(by_kind["layers"].values()), []), asked),
        "drawn": [{key: row[key] for key in ("name", "ms", "over_fp32", "plans", "load")} for row in random],
    }


def others_of(earlier: Facts) -> Facts:
    """Take over what an earlier page says of other kinds than networks, with the day when it was measured."""
    note = {"note": earlier["note"]} if "note" in earlier else {}
    return {"others_made": earlier.get("others_made", earlier["made"]), **note} | {
        key: earlier[key] for key in _OF_OTHER_KINDS
    }


def _sweeps(networks: Sequence[Facts], batches: Sequence[Facts]) -> list[Facts]:
    """Lines of the sweep: a network's own batch is that of the network."""
    bases = dict.fromkeys(row["name"].partition("@")[0] for row in batches)
    rows = []
    for base in bases:
        of_base = [row for row in batches if row["name"].startswith(f"{base}@")]
        sizes = [(int(row["name"].partition("@")[2]), row) for row in of_base]
        own = [(0, row) for row in networks if row["name"] == base]
        for batch, row in sorted((*sizes, *own), key=lambda entry: entry[0]):
            keys = ("ms", "over_fp32", "load")
            rows.append({"title": NETWORKS[base], "batch": batch or None} | {key: row[key] for key in keys})
    return rows


def table_of(data: Facts) -> str:
    """Write the README's table: steps in ms, and by how much `optimal` is faster than FP32."""
    versions, machine, name = data["made"]["versions"], data["machine"], _name_of(data)
    lines = [
        f"Measured on {cpu_of(machine)} ({machine['cores']} cores with {', '.join(machine['units'])} units), "
        f"{data['made']['date']}, OpenVINO {versions['openvino']}, torch {versions['torch']}: milliseconds "
        "of a step (loss and gradients), medians, each side a process of its own in its users' environment, "
        "alone, in turns. "
        "`make measured-quick` does it on your machine; "
        f"[everything that was measured](benchmarks/results/{name}.md).",
        "",
        f"![Throughput of each side over FP32](benchmarks/results/{name}.svg)",
        "",
        head(
            [
                "step",
                *(SIDES[side].title for side in _README_SIDES),
                "optimal over FP32",
                "optimal over the fastest of torch's four",
            ]
        ),
    ]
    for row in data["rows"]:
        cells = [number(row["ms"].get(side, {}).get("median"), ".1f") for side in _README_SIDES]
        over = row["over_fp32"].get("optimal"), row["optimal_over"].get(row["fastest"])
        lines.append(line([row["title"], *cells, *map(interval, over)]))
    return "\n".join([*lines, *_truths(data)])


def _truths(data: Facts) -> Iterator[str]:
    """Compare with torch and with the paper's claims, in sentences."""
    if over := data["over_torch"]:
        behind = f", behind on {', '.join(over['behind'])}" if over["behind"] else ""
        yield ""
        yield (
            f"`optimal` is {over['mean']:.2f} times as fast as the fastest of torch's four in the geometric "
            f"mean of {over['networks']} networks, {over['least']:.2f} to {over['most']:.2f} times{behind}."
        )
    if gain := data["over_tf_amp"].get("optimal"):
        yield ""
        yield (
            "The Campo paper reports a gain of 20.9 % over TF_AMP; here `optimal` gains "
            f"{gain['mean'] - 1:+.1%} ({gain['networks']} networks): list and plans lower nearly the same "
            "products, and the gain over FP32 comes from those."
        )
    if (prediction := data["prediction"]) and data["learned"]:
        models = data["learned"]["models"]
        model, profiled = models[PER_OPERATOR], ""
        if PROFILED in models:
            error = models[PROFILED]["low_error"]
            profiled = (
                f", and those in BF16 {error:.1%} off from a profile of the FP32 step, the paper's input"
            )
        ordered = f"{model['pairs'] - model['wrong']} of {model['pairs']}"
        yield (
            f"Whole steps are predicted {prediction['error']:.0%} off in the mean over "
            f"{prediction['plans']} plans from shapes alone{profiled}; {ordered} pairs of plans that "
            "measurements tell apart are predicted in the right order."
        )


def front_of(data: Facts) -> str:
    """Write what the front page says: by how much `optimal` is faster than FP32, and the picture."""
    ratios = [row["over_fp32"]["optimal"]["median"] for row in data["rows"] if "optimal" in row["over_fp32"]]
    return (
        f"Training steps in BF16 run **{min(ratios):.1f} to {max(ratios):.1f} times as fast as in FP32**, "
        f"measured in OpenVINO on {data['machine']['cores']} cores of {cpu_of(data['machine'])}, "
        f"{data['made']['date']} ([all figures](../benchmarks/results/{_name_of(data)}.md)):\n\n"
        f"![Throughput of each side over FP32](../benchmarks/results/{_name_of(data)}.svg)"
    )


def _name_of(data: Facts) -> str:
    return f"measured{data.get('machine_suffix', '')}"


def with_table(text: str, table: str) -> str:
    """Put the table into its place in a README.

    Raises
    ------
    UsageError
        If the place is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(
            "the README has no place for the table of measured steps",
            why=f"it lacks {BEGIN} or {END}",
            remedy="Put both lines where the table belongs.",
        )
    return f"{before}{BEGIN}\n{table}\n{END}{after}"
