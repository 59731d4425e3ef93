"""``campo-onnx calibrate`` from the outside, killed and resumed."""

import csv
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto

from campo_onnx.calibrate.calibration import load_calibration
from campo_onnx.measure import node_timer as microbench
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.timing import Timing
from cli.render.costs import print_calibration
from cli.render.table import TableFormat

ROOT = Path(__file__).parents[2]
MLP = ROOT / "tests" / "data" / "mlp.onnx"
WORDS = ["--quick", "--shapes", "12", "--device", "cpu", "--threads", "1"]


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """Files and output of a calibration that was killed, and then run again to its end."""

    store: Path
    out: Path
    before: dict[str, tuple[object, ...]]
    printed: str


TIMED_BY_BYTES = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.timed_by_bytes import switch_on
switch_on()
"""
KILLED_AT_THE_FIFTH = """
import os, signal
from campo_onnx.measure.store import Store
add, added = Store.add, []

def add_or_die(*values):
    add(*values)
    added.append(values)
    if len(added) == 5:
        os.kill(os.getpid(), signal.SIGKILL)

Store.add = add_or_die
"""


def program(*words: str, home: Path, first: str = "") -> subprocess.CompletedProcess[str]:
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    run = f"{TIMED_BY_BYTES}{first}\nfrom {script.module} import {script.attr}; {script.attr}()"
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(home),
        "XDG_DATA_HOME": str(home / "data"),
        "COLUMNS": "200",
    }
    return subprocess.run(
        [sys.executable, "-c", run, "calibrate", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def rows(store: Path) -> dict[str, tuple[object, ...]]:
    with closing(sqlite3.connect(store)) as connection:
        return {row[1]: row for row in connection.execute("SELECT * FROM timings")}


@pytest.fixture(scope="module")
def killed_and_resumed(tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    home = tmp_path_factory.mktemp("calibrated")
    store, out = home / "campo-onnx" / "timings.sqlite", home / "here.json"
    words = ["-o", str(out), *WORDS, "--ops", "Neg"]
    killed = program(*words, home=home, first=KILLED_AT_THE_FIFTH)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not out.exists()
    before = rows(store)
    resumed = program(*words, home=home)
    assert resumed.returncode == 0, resumed.stderr
    return Calibrated(store=store, out=out, before=before, printed=resumed.stdout)


def test_killed_and_resumed_without_repeating_work(killed_and_resumed: Calibrated) -> None:
    before, after = killed_and_resumed.before, rows(killed_and_resumed.store)
    assert len(before) == 5
    assert "Neg" in killed_and_resumed.printed
    assert len(after) > len(before)
    assert {key: after[key] for key in before} == before  # not measured again: same values, same time
    assert json.loads(killed_and_resumed.out.read_text())["entries"][0]["op"] == "Neg"


def test_again_takes_every_timing_once_more(killed_and_resumed: Calibrated) -> None:
    home, before = killed_and_resumed.store.parents[1], rows(killed_and_resumed.store)
    with closing(sqlite3.connect(killed_and_resumed.store)) as connection:
        connection.execute("UPDATE timings SET measured_at = '2001-01-01T00:00:00+00:00', median_us = 1e9")
        connection.commit()
    out = home / "again.json"
    run = program("-o", str(out), *WORDS, "--ops", "Neg", "--again", home=home)
    assert run.returncode == 0, run.stderr
    after = rows(killed_and_resumed.store)
    assert after.keys() == before.keys()
    assert all(row[3] < 1e9 and not row[6].startswith("2001") for row in after.values())


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--ops", "NoSuchOp"], 2, "no samples can be drawn of 'NoSuchOp'"),
        (["--cuda-graph", "--ops", "Neg"], 2, "--cuda-graph needs the CUDA provider"),
        (["--precision", "bf16", "--ops", "MatMul"], 5, "nothing could be calibrated"),
        (["--again", "--from-store", "any.sqlite"], 2, "--again cannot be combined with --from-store"),
    ],
)
def test_refusals(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    message: str,
) -> None:
    out = tmp_path / "here.json"
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["campo-onnx", "calibrate", "-o", str(out), *WORDS, *words])
    with pytest.raises(SystemExit) as left:
        script.load()()
    assert left.value.code == code
    assert message in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_by_default_it_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    run = script.load()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["campo-onnx", *words])
        with pytest.raises(SystemExit) as left:
            run()
        printed = capsys.readouterr()
        return int(left.value.code or 0), " ".join(printed.out.split()), " ".join(printed.err.split())

    words = ("calibrate", "--quick", "--shapes", "12", "--device", "cpu", "--ops", "Neg")
    assert call(*words)[0] == 0
    file = tmp_path / "data" / "campo-onnx" / "calibrations" / "cpu-fp16.json"
    assert file.is_file()
    before = file.read_text()
    code, _, err = call(*words)
    assert (code, file.read_text()) == (2, before)  # a long one is not lost to a short one
    assert "--force" in err
    optimized = str(tmp_path / "mixed.onnx")
    code, out, _ = call("optimize", str(MLP), "-o", optimized, "--device", "cpu")
    assert code == 0
    assert ". cpu (predicted from a calibration), strategy optimal" in out
    assert "Everything stays in FP32: fp16 is predicted to be slower on cpu." in out
    assert "calibrated here in fp16: M_A" in call("devices")[1]
    file.write_text(before.replace('"ort": "', '"ort": "0.'))
    code, _, err = call(
        "optimize", str(MLP), "-o", optimized, "--device", "cpu", "--costs", "model", "--force"
    )
    assert code == 6
    assert "ONNX Runtime was 0." in err
    assert "not used: ONNX Runtime was 0." in call("devices", "cpu")[1]
    code, _, err = call("optimize", str(MLP), "-o", optimized, "--device", str(file), "--force")
    assert code == 0
    assert "was made with ONNX Runtime 0." in err
    file.write_text(before[:300])
    code, _, err = call("optimize", str(MLP), "-o", optimized, "--device", "cpu", "--force")
    assert code == 5
    assert "cannot be read" in err


def test_measured_fp16_loses_on_a_cpu_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def imagined(signature: Signature, _timer: NodeTimer) -> Timing:
        is_low = any(info.dtype == TensorProto.FLOAT16 for info in signature.operands)
        return Timing(median_us=9.0 if is_low else 5.0, spread_us=0.0, repeats=1)

    monkeypatch.setattr(microbench, "time_node", imagined)
    words = [str(MLP), "-o", str(tmp_path / "o.onnx"), "--device", "cpu", "--costs", "measure"]
    monkeypatch.setattr("sys.argv", ["campo-onnx", "optimize", *words])
    with pytest.raises(SystemExit) as left:
        script.load()()
    assert not left.value.code
    printed = " ".join(capsys.readouterr().out.split())
    assert "0 of" in printed
    assert (
        "Everything stays in FP32: fp16 is measured to be slower on cpu. The nodes whose time changes take"
        in printed
    )


def test_a_store_that_came_back_is_fitted_without_measuring(
    killed_and_resumed: Calibrated,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (script,) = entry_points(group="console_scripts", name="campo-onnx")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    there = tmp_path / "timings.sqlite"
    shutil.copyfile(killed_and_resumed.store, there)
    with closing(sqlite3.connect(there)) as connection:  # another processor than this machine's
        (machine,) = connection.execute("SELECT DISTINCT machine FROM timings").fetchone()
        elsewhere = json.dumps({**json.loads(machine), "device": "Elsewhere 9000"}, sort_keys=True)
        connection.execute("UPDATE timings SET machine = ?", [elsewhere])
        connection.commit()
    before = rows(there)

    def fitted(*more: str) -> tuple[int, str, dict[str, Any]]:
        out = tmp_path / "here.json"
        out.unlink(missing_ok=True)
        words = ["-o", str(out), "--quick", "--shapes", "12", *more, "--from-store", str(there)]
        monkeypatch.setattr("sys.argv", ["campo-onnx", "calibrate", *words])
        with pytest.raises(SystemExit) as left:
            script.load()()
        said = " ".join(capsys.readouterr().err.split())
        return int(left.value.code or 0), said, json.loads(out.read_text()) if out.exists() else {}

    code, said, calibration = fitted("--ops", "Neg")
    assert code == 0, said
    original = json.loads(killed_and_resumed.out.read_text())
    assert calibration["machine"]["device"] == "Elsewhere 9000"
    assert calibration["entries"] == original["entries"]
    assert calibration["cast"] == original["cast"]
    assert calibration["failures"] == {}

    code, said, calibration = fitted("--ops", "Neg,Relu")
    assert code == 0, said
    assert calibration["failures"]["Relu"] == "12 of 12 are not in the store"
    assert rows(there) == before

    with closing(sqlite3.connect(there)) as connection:
        connection.execute("DELETE FROM timings WHERE signature LIKE '%Reshape%'")
        connection.commit()
    code, said, _ = fitted("--ops", "Neg")
    assert code != 0
    assert "too few timings" in said
    assert fitted("--device", "cuda")[0] != 0


def test_accuracy_as_csv(killed_and_resumed: Calibrated, capsys: pytest.CaptureFixture[str]) -> None:
    calibration = load_calibration(killed_and_resumed.out)
    print_calibration(calibration, killed_and_resumed.out, TableFormat.CSV)
    printed = capsys.readouterr()
    (row,) = csv.DictReader(io.StringIO(printed.out))
    (entry,) = calibration.entries
    assert row["operator"] == "Neg"
    assert float(row["accuracy"]) == entry.scores.chosen
    assert (int(row["shapes_fitted"]), int(row["shapes_held_out"])) == (entry.fitted, entry.scores.shapes)
    assert "Wrote" in printed.err
