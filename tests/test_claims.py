"""The README's table of measured things is what the committed results say."""

import json
from pathlib import Path

import pytest

from campo_onnx.calibrate.calibration import load_calibration
from campo_onnx.calibrate.catalog import shipped_folder

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def result(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def row_about(what):
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in lines if line.startswith("|") and what in line]
    return row


def test_predictions_of_fp16_times():
    """Of a CPU and of the H200: accuracy, operators and day."""
    for page, start in (
        ("calibration_cpu", "| ONNX Runtime, FP32"),
        ("calibration_cuda", "| ONNX Runtime on CUDA"),
    ):
        record, row = result(page), row_about(start)
        entries = record["calibrations"][0]["rows"]
        shapes = sum(entry["shapes"] for entry in entries)
        accuracy = sum(entry["shapes"] * entry["chosen"] for entry in entries) / shapes
        operators = len({entry["op"] for entry in entries})
        device = record["machine"]["device"]
        for part in (f"| {operators} | {accuracy:.1%}".replace("%", " %"), device, record["made"]["date"]):
            assert part in row
    paper = result("calibration_cpu")["paper_accuracy"]
    assert f"{paper:.1%}".replace("%", " %") in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("start", "shipped"),
    [
        ("| OpenVINO in BF16, AMD EPYC", "zen4-openvino-bf16"),
        ("| OpenVINO in BF16, Zen 5", "zen5-openvino-bf16"),
        ("| OpenVINO in BF16 on tiles", "cpu_amx-openvino-bf16"),
        ("| ONNX Runtime on CUDA", "h200-fp16"),
    ],
)
def test_calibrations_that_ship(start, shipped):
    calibration = load_calibration(shipped_folder() / f"{shipped}.json")
    figures = f"| {calibration.operators} | {calibration.score:.1%}".replace("%", " %")
    assert figures in row_about(start)
    assert calibration.measured_at[:10] in row_about(start)


ON_A_GPU = (
    "resnet50_b128",
    "alexnet_b256",
    "vgg16_b64",
    "dcgan_generator_b256",
    "dcgan_discriminator_b256",
    "bert_large_b10",
)


def milliseconds(graph):
    """Time of a step on the GPU by side, in the session's records."""
    rows = result("calibration_cuda")["torch"][graph]["result"]["rows"]
    return {
        name: row["step_us"]["median"] / 1000 for label, row in rows.items() for name in (label, *row["also"])
    }


def stated(page, header):
    """Cells of the rows below a header, without the first, one list for each step on the GPU."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith(header))
    rows = lines[head + 2 : head + 2 + len(ON_A_GPU)]
    return [[cell.strip(" *") for cell in line.split("|")[2:-1]] for line in rows]


def ahead_ms(graph):
    """Milliseconds of a step of torch autocast in a loop that does not wait for it."""
    return result("calibration_cuda")["torch"][graph]["result"]["rows"]["torch AMP"]["ahead_us"] / 1e3


def test_steps_on_a_gpu():
    """Times and ratios of the README are those of the records, and so is what it concludes."""
    record = result("calibration_cuda")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"NVIDIA {record['machine']['device'].removeprefix('NVIDIA ')}, {record['made']['date']}" in text
    sides = ("torch", "torch AMP", "ahead", "fp32", "tf-amp tf115", "campo", "optimal")
    steps = [milliseconds(graph) | {"ahead": ahead_ms(graph)} for graph in ON_A_GPU]
    for ms, cells in zip(
        steps, stated("README.md", "| step | torch eager | torch autocast, FP16"), strict=True
    ):
        expected = [f"{ms[side]:.1f}" for side in sides]
        assert cells == [*expected, *(f"{ms[side] / ms['optimal']:.2f}" for side in ("fp32", "ahead"))]
    ours = "faster than FP32 on all six and the fastest of our strategies on all six"
    on_all = f"**`optimal` is {ours}, and torch autocast is faster than `optimal` on all six**"
    assert f"{on_all}, on BERT-large only where nothing waits" in " ".join(text.split())
    assert all(
        ms["optimal"] < ms[other] for ms in steps for other in ("fp32", "tf-amp tf115", "torch-amp", "campo")
    )
    assert all(ms["ahead"] < ms["optimal"] for ms in steps)
    waiting = {graph for graph, ms in zip(ON_A_GPU, steps, strict=True) if ms["torch AMP"] > ms["optimal"]}
    assert waiting == {"bert_large_b10"}
    off = [
        abs(row["predicted_us"] / row["step_us"]["median"] - 1)
        for graph in ON_A_GPU
        for row in record["torch"][graph]["result"]["rows"].values()
        if row["predicted_us"]
    ]
    page = " ".join((ROOT / "docs" / "gpu.md").read_text(encoding="utf-8").split())
    assert (
        f"**Predictions** of these {len(off)} steps are {sum(off) / len(off):.0%}".replace("%", " %") in page
    )


def test_the_table_of_the_gpu_page():
    """Its milliseconds stand on the page of the session, too."""
    by_torch = ("torch", "torch AMP", "torch AMP, channels last")
    sides = ("fp32", "tf-amp tf115", "torch-amp", "campo", "optimal", *by_torch)
    for graph, cells in zip(ON_A_GPU, stated("docs/gpu.md", "| step | FP32 (TF32)"), strict=True):
        ms = milliseconds(graph)
        for side, cell in zip(sides, cells, strict=True):
            has_no_images = graph == "bert_large_b10" and side.endswith("channels last")
            assert cell == ("-" if has_no_images else f"{ms[side]:.1f}"), (graph, side)


def test_accuracy():
    data, row = result("accuracy"), row_about("final accuracy in emulated FP16")
    ours = [entry for entry in data["differences"] if entry["strategy"] == "optimal"]
    assert len(ours) == 3
    for entry in ours:
        difference = entry["difference"]
        assert f"{difference['mean']:+.2f} ± {difference['half_width']:.2f}" in row
    assert f"{data['seeds']} seeds" in row
    assert data["made"]["date"] in row


def test_accuracy_in_real_bf16():
    measured, row = result("measured_accuracy"), row_about("final accuracy in BF16, computed by BF16 units")
    ours = {entry["title"]: entry["rows"]["optimal"]["difference"] for entry in measured["rows"]}
    least, most = (choose(ours, key=lambda title: ours[title]["mean"]) for choose in (min, max))
    for title in (least, most):
        assert f"{ours[title]['mean']:+.2f} ± {ours[title]['half_width']:.2f} ({title})" in row
    assert all(abs(difference["mean"]) < difference["half_width"] for difference in ours.values())
    assert {entry["seeds"] for entry in measured["rows"]} == {10}
    assert measured["made"]["date"] in row


def test_planning_time():
    data, row = result("scaling"), row_about("planning and writing a step")
    largest = max(data["rows"], key=lambda entry: entry["nodes"])
    assert f"{largest['nodes']:,} nodes" in row
    assert f"{largest['cpu_s']:.0f} s of one core, {largest['peak_mib'] * 2**20 / 1e9:.2f} GB" in row
    assert data["made"]["date"] in row


@pytest.mark.parametrize("page", ["README.md", "pyproject.toml", "cli/main.py", "docs/package.md"])
def test_nothing_is_claimed_that_needs_a_device(page):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split()).lower()
    assert "never slower" not in text
    assert "never less accurate" not in text
    assert "lossless" not in text
