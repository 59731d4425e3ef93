"""``campo-onnx profile`` from the outside."""

import csv
import io
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).parent.parent / "data"
MLP = str(DATA / "mlp.onnx")


@pytest.fixture
def run(program):
    return partial(program, "profile")


def test_writes_a_table(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from campo_onnx.measure.profile import read_profile

    out = tmp_path / "mlp.parquet"
    assert run(MLP, "-o", str(out), "--device", "cpu", "--steps", "2", "--threads", "1") == 0
    printed = capsys.readouterr().out
    assert "FP32 step" in printed
    assert "Gemm" in printed
    assert len(read_profile(out).table) == 71
    assert (tmp_path / "cache" / "campo-onnx" / "timings.sqlite").exists()


def test_json(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(MLP, "-o", str(tmp_path / "p.parquet"), "--device", "cpu", "--steps", "1", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format_version"] == 3
    assert document["machine"]["provider"] == "cpu"
    assert len(document["nodes"]) == 71


def test_csv_has_every_operator(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "p.parquet"
    assert run(MLP, "-o", str(out), "--device", "cpu", "--steps", "1", "--format", "csv") == 0
    printed = capsys.readouterr()
    rows = [*csv.DictReader(io.StringIO(printed.out))]
    assert sum(int(row["nodes"]) for row in rows) == 71
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1.0)
    assert f"Wrote {out}" in " ".join(printed.err.split())


def test_inputs_that_do_not_fit(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "data.npz", wrong=np.ones(1))
    out = tmp_path / "p.parquet"
    assert run(MLP, "-o", str(out), "--device", "cpu", "--inputs", str(tmp_path / "data.npz")) == 2
    assert "missing" in capsys.readouterr().err
    assert not out.exists()


def test_existing_file_is_kept(run, tmp_path: Path) -> None:
    out = tmp_path / "p.parquet"
    out.write_text("precious")
    assert run(MLP, "-o", str(out), "--device", "cpu") == 2
    assert out.read_text() == "precious"


def test_cuda_that_is_not_there(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from campo_onnx.runtime.onnxruntime.providers import cuda_problem

    if not cuda_problem():
        pytest.skip("this machine has a CUDA provider")
    assert run(MLP, "-o", str(tmp_path / "p.parquet"), "--device", "cuda") == 8
    assert "Install onnxruntime-gpu" in " ".join(capsys.readouterr().err.split())


def test_store_that_cannot_be_used(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("mine")
    assert run(MLP, "-o", str(tmp_path / "p"), "--device", "cpu", "--store", str(foreign)) == 5
    assert foreign.read_text() == "mine"


def test_why_the_kernel_trace_was_not_used_is_told(
    run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from campo_onnx.measure import profiler as profiling

    asked: list[dict[str, object]] = []
    take = profiling.take_profile

    def noted(*values, **words):
        asked.append(words)
        profile = take(*values, **{**words, "kernel_trace": False, "counters": False})
        return replace(profile, notes=("the kernel trace was not used: it disagrees",))

    monkeypatch.setattr(profiling, "take_profile", noted)
    out = ("-o", str(tmp_path / "p.parquet"), "--device", "cpu", "--steps", "1", "--force")
    assert run(MLP, *out) == 0
    assert "The kernel trace was not used: it disagrees." in capsys.readouterr().out
    assert run(MLP, *out, "--kernel-trace", "off", "--counters", "off") == 0
    assert [words["kernel_trace"] for words in asked] == [True, False]
    assert [words["counters"] for words in asked] == [False, False]  # a CPU has none
    assert run(MLP, *out, "--kernel-trace", "on") == 2


def test_a_profile_where_it_is_not_used(program, capsys) -> None:
    for costs in ("datasheet", "measure"):
        words = ("optimize", MLP, "-o", "o.onnx", "--costs", costs, "--profile", "x.parquet")
        assert program(*words) == 2
        assert f"--profile cannot be combined with --costs {costs}" in capsys.readouterr().err


@pytest.mark.parametrize("threads", [-1, 2**31])
def test_threads_that_no_runtime_starts(run, threads, capsys):
    assert run(MLP, "-o", "p.parquet", "--device", "cpu", "--threads", str(threads)) == 2
    assert "Invalid value for '--threads': Input should be" in capsys.readouterr().err
    assert not Path("p.parquet").exists()
