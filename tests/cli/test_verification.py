"""``campo-onnx optimize --verify``: what is written was measured, or is FP32."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from campo_onnx.bench import bench as bench_module
from campo_onnx.bench import loading
from campo_onnx.bench.rounds import time_rounds

DATA = Path(__file__).parent.parent / "data"
BERT, MLP = DATA / "bert2_mlm_sdpa.onnx", DATA / "mlp.onnx"


@pytest.fixture
def optimize(program, tmp_path):
    """Run the command; returns its exit code and where it writes."""
    output = tmp_path / "mixed.onnx"
    return lambda *words, model=BERT: (program("optimize", model, "-o", output, *words), output)


@pytest.fixture
def slower_in_fp16(monkeypatch):
    """Steps run; by the clock the mixed one takes 3 ms, and FP32 takes 2."""
    now_s, open_step = 0.0, loading.open_step

    def open_timed(graph, *args, **options):
        run, note = open_step(graph, *args, **options)

        def step():
            nonlocal now_s
            run()
            now_s += 0.003 if graph.name == "fp16" else 0.002

        return step, note

    monkeypatch.setattr(loading, "open_step", open_timed)
    monkeypatch.setattr(bench_module, "time_rounds", partial(time_rounds, clock=lambda: now_s))


def test_where_fp16_loses_fp32_is_written_and_exit_is_0(optimize, slower_in_fp16, capsys):
    words = ("--device", "cpu", "--strategy", "tf-amp", "--costs", "datasheet")
    code, output = optimize(*words, "--verify", "--verify-steps", "8", "--json")
    out, err = capsys.readouterr()
    assert code == 0
    assert "FP32 is returned" in err
    plan = json.loads(out)
    assert not plan["casts"]
    verified = [d for d in plan["decisions"] if d["decided_by"] == "verified-slower"]
    assert verified[0]["facts"]["low_ms"] == pytest.approx(3)
    fp32, written = onnx.load(BERT), onnx.load(output)
    assert [n.op_type for n in written.graph.node] == [n.op_type for n in fp32.graph.node]


def test_symbolic_dimensions_and_external_weights(optimize, tmp_path, capsys):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 20]>
        g (float[N,64] x) => (float[N,64] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, w) }""")
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = tmp_path / "step.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    words = ("--device", "cpu", "--strategy", "tf-amp", "--costs", "datasheet", "--dim", "N=16")
    code, output = optimize(*words, "--verify", "--verify-steps", "6", model=path)
    assert code == 0, capsys.readouterr().err
    assert "Measured on" in capsys.readouterr().err
    assert output.is_file()


def test_a_plan_that_changes_nothing_needs_no_measuring(optimize, capsys):
    code, output = optimize("--device", "cpu", "--costs", "datasheet", "--verify", model=MLP)
    assert code == 0
    assert "Nothing to verify" in capsys.readouterr().err
    assert output.is_file()


def test_a_real_batch_is_measured_on(optimize, tmp_path, capsys):
    np.savez(tmp_path / "batch.npz", nonsense=np.ones(3))
    words = ("--device", "cpu", "--strategy", "tf-amp", "--verify", "--costs", "datasheet")
    code, output = optimize(*words, "--inputs", str(tmp_path / "batch.npz"), model=MLP)
    assert code == 2
    assert "does not fit the graph" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--repair",), 2, "--repair needs --verify"),
        (("--repair", "--verify", "--strategy", "tf-amp", "--device", "cpu"), 2, "does not use costs"),
        (("--inputs", "missing.npz"), 2, "missing.npz does not exist"),
        (("--safety", "data"), 2, "needs a batch"),
    ],
)
def test_misuse_is_said_before_anything_happens(optimize, capsys, words, code, message):
    exit_code, output = optimize(*words, model=MLP)
    assert exit_code == code
    assert message in capsys.readouterr().err
    assert not output.exists()


def test_a_device_that_is_not_here_cannot_verify(optimize, capsys, monkeypatch):
    monkeypatch.setattr("campo_onnx.runtime.onnxruntime.providers.cuda_problem", lambda: "no GPU answers")
    code, output = optimize("--device", "v100", "--costs", "datasheet", "--verify", model=MLP)
    assert code == 8
    assert "no GPU answers" in capsys.readouterr().err
    assert not output.exists()
