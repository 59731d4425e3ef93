"""``campo-onnx devices`` and the program itself: version, help."""

import json

import pytest

import campo_onnx
from campo_onnx.hardware.datasheet import devices
from campo_onnx.measure.store import Store, TimingKey
from campo_onnx.runtime.machine import cores, cpu_name
from campo_onnx.runtime.registry import machine, runtimes
from campo_onnx.runtime.timing import Timing


def test_the_table_names_every_device(program, capsys):
    assert program("devices") == 0
    printed = capsys.readouterr().out
    for name in devices():
        assert name in printed
    assert "datasheet" in printed


def test_the_table_is_compact(program, capsys):
    assert program("devices") == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert sum(any(line.strip().startswith(name) for name in devices()) for line in lines) == len(devices())
    rows = lines[: next(i for i, line in enumerate(lines) if line.startswith("This machine: "))]
    assert max(map(len, rows)) <= 110
    assert len([line for line in rows if line]) <= len(devices()) + 3  # none is wrapped


def test_this_machine_is_described(program, capsys):
    assert program("devices") == 0
    printed = capsys.readouterr().out
    assert cpu_name() in printed
    for runtime in runtimes():
        problem = runtime.problem("cpu")
        assert (problem or f"Runtime: {runtime.name} {runtime.version}") in printed
    assert program("devices", "--json") == 0
    machine = json.loads(capsys.readouterr().out)["machine"]
    assert (machine["cpu"], machine["cores"]) == (cpu_name(), cores())
    assert [entry["name"] for entry in machine["runtimes"]] == [runtime.name for runtime in runtimes()]
    told = {entry["name"]: entry["capabilities"] for entry in machine["runtimes"]}
    assert told["onnxruntime"]["keeps_nan"]
    assert not told["openvino"]["keeps_nan"]
    assert told["openvino"]["refused_precisions"][0][0] == "fp16"


def test_one_device_in_full(program, capsys):
    assert program("devices", "h100") == 0
    printed = " ".join(capsys.readouterr().out.split())
    for part in (
        devices()["h100"].source,
        "3,350 GB/s",
        "5 us ONNX Runtime's enqueue",
        "70% FP32 issue is dual",
        "No calibration",
    ):
        assert part in printed
    assert "v100" not in printed


def test_a_device_nobody_knows(program, capsys):
    assert program("devices", "h20") == 2
    assert "Did you mean" in capsys.readouterr().err


def test_json_holds_every_figure(program, capsys):
    assert program("devices", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format_version"] == 1
    rows = {row["name"]: row for row in document["devices"]}
    for name, device in devices().items():
        assert rows[name]["memory_bandwidth_bytes_per_s"] == device.memory_bandwidth_bytes_per_s
        assert rows[name]["kind"] == "datasheet"
        assert rows[name]["source"]
        assert rows[name]["assumptions"]
        assert rows[name]["timings"] == 0
    assert program("devices", "a100", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["devices"]
    assert row["name"] == "a100"


def test_timings_and_a_store_that_cannot_be_read(program, capsys, tmp_path):
    here = machine("cpu")
    with Store(tmp_path / "cache" / "campo-onnx" / "timings.sqlite") as store:
        store.add(TimingKey(machine=here, signature="x"), Timing(median_us=1.0, spread_us=0.0, repeats=1))
    assert program("devices") == 0
    assert "measured here: 1 timings" in capsys.readouterr().out
    assert program("devices", "cpu") == 0
    assert "1 timings of single nodes" in capsys.readouterr().out
    foreign = tmp_path / "notes.txt"
    foreign.write_text("mine")
    assert program("devices", "--store", str(foreign)) == 0
    printed = capsys.readouterr()
    assert "not an SQLite file" in printed.err
    assert "h200" in printed.out


def test_version(program, capsys):
    assert program("--version") == 0
    assert capsys.readouterr().out == f"campo-onnx {campo_onnx.__version__}\n"


def test_help_lists_the_commands_and_exit_codes(program, capsys):
    assert program("--help") == 0
    printed = " ".join(capsys.readouterr().out.split())
    for part in ("optimize", "explain", "devices", "0 ok, 1 a bug of ours, 2 usage", "9 check failed"):
        assert part in printed


@pytest.mark.parametrize("words", [("frobnicate",), ("devices", "h200", "extra"), ("--wrong",)])
def test_misuse_is_code_2(program, capsys, words):
    assert program(*words) == 2
    assert "--help` shows what there is." in capsys.readouterr().err


def test_commands_and_names_are_suggested(program, capsys):
    for words, guess in {
        ("optimise", "x.onnx"): "'optimize'",
        ("devices", "H20"): "'h200'",
        ("devices", "--jsn"): "--json",
    }.items():
        assert program(*words) == 2
        assert guess in capsys.readouterr().err


def test_help_shows_no_type_beside_flags(program, capsys):
    for words in ([], ["optimize"], ["bench"]):
        assert program(*words, "--help") == 0
        assert "bool" not in capsys.readouterr().out


def test_an_error_is_a_document_under_json(program, capsys):
    for words, kind in {("toaster",): "UsageError", ("--device", "x"): "UsageError"}.items():
        assert program("devices", "--json", *words) == 2
        printed = capsys.readouterr()
        error = json.loads(printed.out)["error"]
        assert (error["kind"], error["exit_code"]) == (kind, 2)
        assert error["message"] in printed.err
    assert program("devices", "--json", "--format", "csv") == 2
