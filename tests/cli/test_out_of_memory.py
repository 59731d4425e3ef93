"""Too little memory: one message, exit code 8, and nothing left behind, whoever ran out of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from campo_onnx import errors
from campo_onnx.errors import CampoError, ModelError, is_out_of_memory

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"
NO_MEMORY = [
    MemoryError(),
    MemoryError("std::bad_alloc"),
    RuntimeError("can't start new thread"),
    RuntimeError("[ONNXRuntimeError] : 1 : FAIL : std::bad_alloc"),
    OSError(12, "Cannot allocate memory"),
    ImportError("libx.so: failed to map segment from shared object"),
]


def raising(error):
    def function(*_, **__):
        raise error

    return function


def wrapped(error):
    """Raise an error of ours instead, as callers of native code do."""
    outer = ModelError("the graph cannot be loaded", why=str(error))
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize("error", [*NO_MEMORY, *map(wrapped, NO_MEMORY)], ids=repr)
def test_it_is_one_message_and_code_8(program, tmp_path, capsys, monkeypatch, error):
    monkeypatch.setattr("campo_onnx.planning.pipeline.problem_of", raising(error))
    assert program("optimize", MLP, "-o", "out.onnx", "--device", "v100", "--plan", "p.json") == 8
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("error: out of memory: this machine has too little")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_it_is_a_document_where_one_was_asked_for(program, capsys, monkeypatch):
    monkeypatch.setattr("campo_onnx.planning.pipeline.problem_of", raising(MemoryError()))
    assert program("optimize", MLP, "-o", "out.onnx", "--device", "v100", "--json") == 8
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "OutOfMemoryError"


def test_it_is_told_of_one_check_among_many(program, tmp_path, capsys, monkeypatch):
    assert program("optimize", MLP, "-o", "mixed.onnx", "--device", "v100", "--probe", "off") == 0
    monkeypatch.setattr("campo_onnx.checking.batch.check", raising(MemoryError()))
    assert program("check", "mixed.onnx", "--against", MLP, "--results", "r.jsonl") == 8
    assert "error: out of memory" in capsys.readouterr().err
    assert "verdicts" not in (tmp_path / "r.jsonl").read_text()


def test_other_errors_are_none_of_it():
    assert not any(map(is_out_of_memory, (RuntimeError("no"), CampoError("out of memory"), ValueError())))
    (other,) = (wrapped(RuntimeError("unknown operator")),)
    assert not is_out_of_memory(other)


def test_the_message_takes_no_memory(program, capfd, monkeypatch):
    monkeypatch.setattr("campo_onnx.planning.pipeline.problem_of", raising(MemoryError()))
    monkeypatch.setattr("campo_onnx_cli.main.print_error", raising(MemoryError()))
    left = []
    monkeypatch.setattr("os._exit", lambda code: left.append(code) or sys.exit(code))
    assert program("optimize", MLP, "-o", "out.onnx", "--device", "v100") == 8
    assert left == [8]
    assert f"error: {errors.OutOfMemoryError()}" in capfd.readouterr().err


LIMITED = """
import resource, sys
import numpy, onnx, polars, scipy.sparse.csgraph
import campo_onnx.planning.pipeline, campo_onnx.emulation.probe, campo_onnx.ir.exporter
from campo_onnx_cli.start import run
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + int(sys.argv.pop(1)), resource.RLIM_INFINITY))
run()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no such limit there")
@pytest.mark.parametrize("free_bytes", [1 << 16, 1 << 20])
def test_a_process_that_may_take_no_more(tmp_path, free_bytes):
    words = ["optimize", MLP, "-o", tmp_path / "out.onnx", "--device", "v100", "--probe", "off"]
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, str(free_bytes), *map(str, words)], capture_output=True, text=True
    )
    assert run.returncode == 8, run.stderr
    assert run.stderr.count("error: out of memory") == 1
    assert "Traceback" not in run.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="no such limit there")
def test_less_than_libraries_need_to_load(tmp_path):
    command = "import resource; resource.setrlimit(resource.RLIMIT_AS, (250 << 20,) * 2);"
    command += "from campo_onnx_cli.start import run; run()"
    run = subprocess.run(
        [sys.executable, "-c", command, "optimize", MLP, "-o", tmp_path / "out.onnx"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 8
    assert run.stderr == f"error: {errors.OutOfMemoryError()}\n"
