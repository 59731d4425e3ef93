"""Graphs with nothing to decide, and inputs that are not numbers: an answer, not an error."""

import re

import numpy as np
import onnx
import onnx.parser
import pytest

HEADER = '<ir_version: 10, opset_import: ["": 20]> g '
EMPTY = "(float[4,4] x) => (float[4,4] x) { }"
TEXT = "(string[4] s, float[4] x) => (float[4] y, string[4] t) { y = Relu(x) t = Identity(s) }"
INTEGERS = "(int64[4,4] x) => (float[4,4] y) { y = Cast <to = 1> (x) }"


@pytest.fixture
def model_file(tmp_path):
    def written(text):
        onnx.save(onnx.parser.parse_model(HEADER + text), tmp_path / "step.onnx")
        return tmp_path / "step.onnx"

    return written


@pytest.mark.parametrize("more", [[], ["--simplify"], ["--precision", "auto"], ["--strategy", "campo"]])
def test_a_graph_without_nodes_is_returned(program, model_file, tmp_path, more):
    source = model_file(EMPTY)
    assert program("optimize", source, "-o", tmp_path / "mixed.onnx", "--device", "v100", *more) == 0
    assert not onnx.load(tmp_path / "mixed.onnx").graph.node
    assert program("compare", source, "--device", "v100") == 0


def test_a_file_without_a_graph_is_refused(program, tmp_path, capsys):
    onnx.save(onnx.ModelProto(ir_version=10), tmp_path / "no.onnx")
    assert program("optimize", tmp_path / "no.onnx", "-o", tmp_path / "mixed.onnx") == 3
    assert "it holds no graph" in capsys.readouterr().err


def test_a_graph_that_reads_text_is_simplified(program, model_file, tmp_path):
    words = ["optimize", model_file(TEXT), "-o", tmp_path / "mixed.onnx", "--device", "v100", "--simplify"]
    assert program(*words) == 0
    onnx.checker.check_model(tmp_path / "mixed.onnx", full_check=True)


def test_safety_on_data_where_nothing_may_go_low(program, model_file, tmp_path):
    np.savez(tmp_path / "batch.npz", x=np.ones((4, 4), np.int64))
    words = ["--device", "v100", "--safety", "data", "--inputs", tmp_path / "batch.npz"]
    assert program("optimize", model_file(INTEGERS), "-o", tmp_path / "mixed.onnx", *words) == 0


OUTSIDE = "(float[4,64] x) => (float[4,64] y) { h = MatMul(x, w) q = Relu(h) y = MatMul(q, w) }"
LOW = ("--device", "v100", "--strategy", "nvidia-amp")


@pytest.mark.parametrize(
    "words",
    [
        ("optimize", "--safety", "data", "--inputs", "batch.npz", *LOW),
        ("optimize", "--rules", "--inputs", "batch.npz", *LOW),
        ("compare", "--drift", "planned", "--drift", "dfp16", "--device", "v100"),
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_weights_that_become_low_may_lie_outside_the_model(program, model_file, tmp_path, words, capsys):
    path = model_file(OUTSIDE)
    model, weight = onnx.load(path), np.eye(64, dtype=np.float32) / 3
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="w.bin")
    np.savez(tmp_path / "batch.npz", x=np.ones((4, 64), np.float32))
    assert program(words[0], path, *words[1:], "--json") == 0
    document = capsys.readouterr().out
    assert re.search(r'"low_nodes": [1-9]|"low_outputs": \[0\]', document)
    assert '"error": null' not in document
