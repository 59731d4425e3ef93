"""Ctrl-C in the middle of a measurement: what was measured is kept, and the exit code is 130."""

import json
import signal
from contextlib import closing
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from campo_onnx.measure.profile import read_profile
from campo_onnx.measure.store import Store

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"
CPU = ("--device", "cpu")


@pytest.fixture
def stopped(program, monkeypatch):
    """Run a command and press Ctrl-C when it has reported some progress; returns the exit code."""
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    console = import_module(f"{script.module.rpartition('.')[0]}.render.console")

    def run(*words: object, at: int) -> int:
        def advance(_: object, done: int, total: int) -> None:
            if done == at:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(console.Advance, "__call__", advance)
        return program(*words)

    return run


def test_bench_prints_and_writes_the_rounds_until_then(stopped, capsys):
    words = (MLP, *CPU, "--threads", "1", "--steps", "60", "-o", "times.json")
    assert stopped("bench", *words, at=9) == 130
    result = json.loads(Path("times.json").read_text())
    assert result["interrupted"]
    assert 0 < result["steps"] < 60
    assert "interrupted" in capsys.readouterr().out


def test_profile_writes_the_steps_until_then(stopped, capsys):
    words = (MLP, "-o", "p.parquet", *CPU, "--threads", "1", "--steps", "9")
    assert stopped("profile", *words, at=5) == 130  # the third that counts
    profile = read_profile(Path("p.parquet"))
    assert profile.table["repeats"].max() <= 3
    assert profile.nodes_us > 0
    assert "interrupted" in capsys.readouterr().out


def test_profile_before_the_first_step_writes_nothing(stopped, capsys):
    assert stopped("profile", MLP, "-o", "p.parquet", *CPU, "--steps", "3", at=1) == 130
    assert not Path("p.parquet").exists()
    assert capsys.readouterr().err.endswith("error: interrupted\n")


def test_calibrate_keeps_every_timing_and_goes_on(stopped, capsys):
    words = ("calibrate", *CPU, "--threads", "1", "--ops", "Relu", "--shapes", "9", "-o", "c.json")
    assert stopped(*words, "--store", "t.sqlite", at=5) == 130
    assert not Path("c.json").exists()
    said = " ".join(capsys.readouterr().err.split())
    with closing(Store(Path("t.sqlite"))) as store:
        before = len(store)
    assert before >= 4
    assert f"{before} timings are kept in t.sqlite" in said
    assert stopped(*words, "--store", "t.sqlite", at=-1) == 0
    with closing(Store(Path("t.sqlite"))) as store:
        assert len(store) > before


def test_interrupted_as_json(stopped, capsys):
    assert stopped("profile", MLP, "-o", "p.parquet", *CPU, "--steps", "3", "--json", at=1) == 130
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["kind"], error["exit_code"]) == ("Interrupted", 130)


def test_compare_shows_the_rounds_until_then(stopped, capsys):
    words = (MLP, *CPU, "--costs", "datasheet", "--measure", "--steps", "60", "--json")
    assert stopped("compare", *words, at=9) == 130
    document = json.loads(capsys.readouterr().out)
    assert document["interrupted"]
    assert any(row["measured_us"] for row in document["strategies"])


def test_verification_decides_nothing_and_writes_nothing(stopped):
    words = (MLP, "-o", "m.onnx", *CPU, "--strategy", "tf-amp", "--costs", "datasheet", "--verify")
    assert stopped("optimize", *words, at=9) == 130
    assert not Path("m.onnx").exists()


def test_costs_by_measurement_are_kept(stopped, capsys):
    words = (MLP, "-o", "m.onnx", *CPU, "--costs", "measure", "--store", "t.sqlite")
    assert stopped("optimize", *words, at=4) == 130
    assert "timings are kept in t.sqlite" in " ".join(capsys.readouterr().err.split())
    assert not Path("m.onnx").exists()
