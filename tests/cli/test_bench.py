"""``campo-onnx bench`` from the outside."""

import json
import re
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from campo_onnx.bench import bench as bench_module
from campo_onnx.bench.result import BenchResult, BenchRow, Interval, Outcome
from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.feeds import synthesize

DATA = Path(__file__).parent.parent / "data"
MLP = DATA / "mlp.onnx"
QUICK = ("--device", "cpu", "--threads", "1", "--steps", "6")


@pytest.fixture
def program(program):
    return partial(program, "bench")


def row(name: str, verdict: Outcome, speedup: float | None = None, **others) -> BenchRow:
    interval = None if speedup is None else Interval(median=speedup, low=speedup - 0.01, high=speedup + 0.01)
    step_us = Interval(median=1234.5, low=1200.0, high=1300.0)
    return BenchRow(name=name, step_us=step_us, speedup=interval, verdict=verdict, **others)


@pytest.fixture
def bench_returns(monkeypatch):
    """Let the benchmark return rows that a test names."""

    def returns(*rows: BenchRow, **others):
        def bench(subjects, machine, **_):
            return BenchResult(
                machine=others.get("machine", machine),
                rows=rows,
                steps=50,
                measured_at="2026-01-01T00:00:00+00:00",
                samples_us={r.name: (1.0, 2.0) for r in rows},
                tolerance=0.01,
                energy_from="not measured: nvidia-ml-py is not installed",
                memory_from="growth of this process' GPU memory (NVML)",
                **{key: value for key, value in others.items() if key != "machine"},
            )

        monkeypatch.setattr(bench_module, "bench", bench)

    return returns


def test_one_graph_twice(program, capsys) -> None:
    assert program(MLP, MLP, *QUICK, "--json", "--batch", "8") == 0
    document = json.loads(capsys.readouterr().out)
    first, second = document["rows"]
    assert (document["format_version"], document["steps"], document["batch"]) == (3, 6, 8)
    assert (first["name"], first["verdict"], first["speedup"]) == ("mlp", "baseline", None)
    assert second["name"] == "mlp (2)"
    assert second["verdict"] in {"faster", "slower", "no difference"}  # by its real time
    assert second["speedup"]["low"] <= second["speedup"]["median"] <= second["speedup"]["high"]
    assert first["samples_per_s"] == pytest.approx(8e6 / first["step_us"]["median"])
    assert {len(times) for times in document["samples_us"].values()} == {6}


def test_table_files_and_real_inputs(program, tmp_path, capsys) -> None:
    np.savez(tmp_path / "batch.npz", **synthesize(import_model(MLP).view))
    words = (MLP, MLP, *QUICK, "--inputs", "batch.npz", "--plot", "times.svg", "--output", "results.json")
    assert program(*words) == 0
    printed = capsys.readouterr().out
    assert "mlp (2)" in printed
    assert "baseline" in printed
    assert "Wrote results.json and times.svg" in printed
    assert "energy" not in printed  # nobody expects it of a CPU
    assert ElementTree.parse(tmp_path / "times.svg").getroot().tag.endswith("svg")
    assert json.loads((tmp_path / "results.json").read_text())["steps"] == 6
    assert program(*words) == 2
    assert "--force" in capsys.readouterr().err
    assert program(*words, "--force") == 0


def test_a_graph_and_its_mixed_version(program, capsys, monkeypatch) -> None:
    from campo_onnx import Options, export_model, oplists, optimize_model, target

    options = Options(target=target("v100"), lists=oplists("campo"))
    export_model(optimize_model(MLP, options).model, Path("mixed.onnx"))
    assert program(MLP, "mixed.onnx", *QUICK) == 0
    assert "mixed" in capsys.readouterr().out


def test_columns_nothing_was_measured_for_are_left_out(program, bench_returns, capsys) -> None:
    bench_returns(row("a", Outcome.BASELINE), row("b", Outcome.FASTER, 1.5))
    assert program(MLP, MLP, *QUICK) == 0
    printed = capsys.readouterr().out
    assert "1.500 (1.490 to 1.510)" in printed
    assert "1.20 to 1.30 ms" in printed
    for column in ("energy", "memory", "samples/s", "tensor cores"):
        assert column not in printed


def test_everything_a_gpu_tells(program, bench_returns, capsys) -> None:
    from dataclasses import replace

    from campo_onnx.runtime.registry import machine

    joules = Interval(median=2.5, low=2.4, high=2.6)
    figures = {"energy_j": joules, "peak_bytes": 3 << 30, "samples_per_s": 812.0, "tensor_pipe_share": 0.4}
    bench_returns(
        row("a", Outcome.BASELINE, **figures),
        row("b", Outcome.SLOWER, 0.8),
        machine=replace(machine("cpu"), provider="cuda", threads=0, tf32=True),
    )
    assert program(MLP, MLP, *QUICK) == 0
    printed = capsys.readouterr().out
    for text in ("2.5 J (2.4 to 2.6)", "3,072 MiB", "812", "40%", "slower", "TF32", "energy not measured"):
        assert text in printed


@pytest.mark.parametrize(
    ("second", "code"),
    [
        (row("b", Outcome.SLOWER, 0.9), 9),
        (row("b", Outcome.FASTER, 1.1), 0),
        (row("b", Outcome.NO_DIFFERENCE, 1.0), 0),
        (row("b", Outcome.FAILED, failure="it broke", failure_code=4), 9),
        (row("b", Outcome.NOT_COMPARED), 9),
    ],
)
def test_fail_if_slower(program, bench_returns, capsys, second, code) -> None:
    bench_returns(row("a", Outcome.BASELINE), second)
    assert program(MLP, MLP, *QUICK) == 0
    assert program(MLP, MLP, *QUICK, "--fail-if-slower", "--output", "r.json") == code
    assert Path("r.json").exists()  # what was measured is kept
    assert ("error:" in capsys.readouterr().err) == (code == 9)


def test_all_failed(program, bench_returns, capsys) -> None:
    bench_returns(*(row(name, Outcome.FAILED, failure=f"{name} broke", failure_code=4) for name in "ab"))
    assert program(MLP, MLP, *QUICK) == 4
    assert "a failed: a broke" in capsys.readouterr().err


def test_interrupted(program, bench_returns, capsys) -> None:
    bench_returns(row("a", Outcome.BASELINE), interrupted=True)
    assert program(MLP, *QUICK, "-o", "r.json") == 130
    assert "interrupted" in capsys.readouterr().out
    assert Path("r.json").exists()  # what was measured is kept


def test_it_says_that_it_loads_and_how_long_it_will_take(program, capsys) -> None:
    assert program(MLP, *QUICK, "--format", "csv") == 0
    printed = capsys.readouterr()
    assert "Loading mlp on cpu." in printed.err
    assert re.search(r"^Timing mlp on cpu, about (a second|[\d.]+ (s|min|h))\.$", printed.err, re.M)
    head, row = printed.out.splitlines()
    assert dict(zip(head.split(","), row.split(","), strict=True))["graph"] == "mlp"


def test_a_graph_for_the_training_build_gets_the_right_advice(program, capsys) -> None:
    sizes = [f"--dim={name}=4" for name in ("mask_dim0", "ids_dim1", "lab_dim0", "lab_dim1")]
    assert program(DATA / "bert_optimized_training.onnx", *sizes, *QUICK) == 4
    assert "needs a training build of ONNX Runtime: org.pytorch.aten:ATen" in capsys.readouterr().err
    assert program(DATA / "ort/gated_training_opset15.onnx", *QUICK) == 4
    advice = "needs a training build of ONNX Runtime: com.microsoft:SoftmaxCrossEntropyLossInternal"
    assert advice in capsys.readouterr().err


def test_graphs_of_another_interface(program, capsys) -> None:
    assert program(MLP, DATA / "resblocks.onnx", *QUICK) == 2
    assert "has no input" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--device", "v100"), 2, "Choose auto, cpu or cuda"),
        (("--provider", "v100"), 2, "--provider 'v100': unknown provider"),
        (("--dim", "batch"), 2, "NAME=SIZE"),
        (("--inputs", "missing.npz"), 2, "missing.npz"),
        (("--cuda-graph", "--device", "cpu"), 2, "CUDA graph"),
        (("--output", "no/such/folder.json"), 2, "does not exist"),
    ],
)
def test_mistakes_are_one_message(program, capsys, words, code, message) -> None:
    assert program(MLP, *words) == code
    printed = " ".join(capsys.readouterr().err.split())
    assert message in printed
    assert "Traceback" not in printed


def test_cuda_that_is_not_there(program, capsys) -> None:
    from campo_onnx.runtime.onnxruntime.providers import cuda_problem

    if not cuda_problem():
        pytest.skip("this machine has a CUDA provider")
    assert program(MLP, MLP, "--device", "cuda") == 8
    assert "Install onnxruntime-gpu" in " ".join(capsys.readouterr().err.split())
