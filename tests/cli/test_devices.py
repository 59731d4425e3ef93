"""``campo-onnx devices`` and the program itself: version, help."""

import json
from importlib.metadata import entry_points

import pytest

import campo_onnx
from campo_onnx.calibrate.datasheet import devices


@pytest.fixture
def program(monkeypatch):
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    run = script.load()

    def call(*words):
        monkeypatch.setattr("sys.argv", ["campo-onnx", *words])
        with pytest.raises(SystemExit) as left:
            run()
        return left.value.code or 0

    return call


def test_the_table_names_every_device(program, capsys):
    assert program("devices") == 0
    printed = capsys.readouterr().out
    for name in devices():
        assert name in printed
    assert "datasheet" in printed


def test_json_holds_every_figure(program, capsys):
    assert program("devices", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    for name, device in devices().items():
        assert rows[name]["memory_bandwidth_bytes_per_s"] == device.memory_bandwidth_bytes_per_s
        assert rows[name]["kind"] == "datasheet"
        assert rows[name]["source"]


def test_version(program, capsys):
    assert program("--version") == 0
    assert capsys.readouterr().out == f"campo-onnx {campo_onnx.__version__}\n"


def test_help_lists_the_commands_and_exit_codes(program, capsys):
    assert program("--help") == 0
    printed = " ".join(capsys.readouterr().out.split())
    for part in ("optimize", "explain", "devices", "0 ok, 1 a bug of ours, 2 usage", "9 check failed"):
        assert part in printed


@pytest.mark.parametrize("words", [("frobnicate",), ("devices", "extra"), ("--wrong",)])
def test_misuse_is_code_2(program, capsys, words):
    assert program(*words) == 2
    assert "Usage" in capsys.readouterr().err
