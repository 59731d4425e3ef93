"""The README's table of measured things is what the committed results say."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def result(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def row_about(what):
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in lines if line.startswith("|") and what in line]
    return row


def test_predictions_of_fp16_times():
    found, row = result("calibration_cpu"), row_about("accuracy of predicted FP16 times")
    entries = found["calibrations"][0]["rows"]
    shapes = sum(entry["shapes"] for entry in entries)
    accuracy = sum(entry["shapes"] * entry["chosen"] for entry in entries) / shapes
    for part in (f"{accuracy:.1%}".replace("%", " %"), found["machine"]["device"], found["made"]["date"]):
        assert part in row
    assert f"{found['paper_accuracy']:.1%}".replace("%", " %") in row


ON_A_GPU = (
    "resnet50_b128",
    "alexnet_b256",
    "vgg16_b64",
    "dcgan_generator_b256",
    "dcgan_discriminator_b256",
    "bert_large_b10",
)


def test_steps_on_a_gpu():
    """Each ratio of the README is one of medians that took turns, in the order of its networks."""
    found = result("calibration_cuda")
    steps = [
        {label: row["step_us"]["median"] for label, row in found["torch"][graph]["result"]["rows"].items()}
        for graph in ON_A_GPU
    ]

    def ratios(over):
        one, two, three, generator, discriminator, bert = (f"{s[over] / s['optimal']:.2f}" for s in steps)
        return f"{one}, {two}, {three}, {generator} and {discriminator}, {bert}"

    ours = row_about("a whole training step on a GPU")
    assert ratios("fp32") in ours
    assert found["machine"]["device"] in ours
    assert found["made"]["date"] in ours
    beside = row_about("PyTorch is faster there")
    assert f"{ratios('torch')}; {ratios('torch AMP')}" in beside
    assert [step["optimal"] > step["torch AMP"] for step in steps] == [True] * 5 + [False]  # BERT-large
    off = [
        abs(row["predicted_us"] / row["step_us"]["median"] - 1)
        for graph in ON_A_GPU
        for row in found["torch"][graph]["result"]["rows"].values()
        if row["predicted_us"]
    ]
    page = " ".join((ROOT / "docs" / "gpu.md").read_text(encoding="utf-8").split())
    assert (
        f"**Predictions** of these {len(off)} steps are {sum(off) / len(off):.0%}".replace("%", " %") in page
    )
    entries = found["calibrations"][0]["rows"]
    row = row_about("M_A there")
    assert f"{found['calibrations'][0]['all']['chosen']:.1%}".replace("%", " %") in row
    assert f"{len({entry['op'] for entry in entries})} operators" in row


def test_the_table_of_the_gpu_page():
    """Its milliseconds stand on the page of the session, too."""
    steps = result("calibration_cuda")["torch"]
    lines = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8").splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("| step | FP32 (TF32)"))
    by_torch = ("torch", "torch AMP", "torch AMP, channels last")
    sides = ("fp32", "tf-amp tf115", "torch-amp", "campo", "optimal", *by_torch)
    for graph, line in zip(ON_A_GPU, lines[head + 2 :], strict=False):
        rows = steps[graph]["result"]["rows"]
        ms = {
            name: row["step_us"]["median"] / 1000
            for label, row in rows.items()
            for name in (label, *row["also"])
        }
        stated = [cell.strip(" *") for cell in line.split("|")[2:-1]]
        for side, cell in zip(sides, stated, strict=True):
            assert cell in (f"{ms[side]:.1f}", "-"), (graph, side)


def test_accuracy():
    found, row = result("accuracy"), row_about("final accuracy in emulated FP16")
    ours = [entry for entry in found["differences"] if entry["strategy"] == "optimal"]
    assert len(ours) == 3
    for entry in ours:
        difference = entry["difference"]
        assert f"{difference['mean']:+.2f} ± {difference['half_width']:.2f}" in row
    assert f"{found['seeds']} seeds" in row
    assert found["made"]["date"] in row


def test_planning_time():
    found, row = result("scaling"), row_about("planning and writing a step")
    largest = max(found["rows"], key=lambda entry: entry["nodes"])
    assert f"{largest['nodes']:,} nodes" in row
    assert f"{largest['cpu_s']:.0f} s of one core, {largest['peak_mib'] * 2**20 / 1e9:.2f} GB" in row
    assert found["made"]["date"] in row


@pytest.mark.parametrize("page", ["README.md", "pyproject.toml", "cli/main.py", "docs/package.md"])
def test_nothing_is_claimed_that_needs_a_device(page):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split()).lower()
    assert "never slower" not in text
    assert "never less accurate" not in text
    assert "lossless" not in text
