"""``campo-onnx demo``: the example inside the wheel."""

from pathlib import Path

import pytest

from campo_onnx.targets import detect

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _on_a_cpu_without_low_precision(monkeypatch):
    monkeypatch.setattr(detect, "cpu_with_low_precision", lambda: None)


def test_the_example_is_optimized_and_what_next_is_said(program, capsys):
    assert program("demo") == 0
    printed = capsys.readouterr().out
    assert "x)" in printed
    folder = Path("campo_demo")
    assert {path.name for path in folder.iterdir()} == {
        "bert_layer.onnx", "bert_layer.mixed.onnx", "plan.json"
    }  # fmt: skip
    commands = [line.split()[1:] for line in printed.splitlines() if line.startswith("  campo-onnx ")]
    assert len(commands) == 3
    for words in commands[:2]:
        assert program(*words) == 0
    assert program("demo") == 2  # nothing is overwritten unasked
    assert program("demo", "--force") == 0


def test_the_example_is_the_one_in_examples():
    shipped = (ROOT / "cli" / "data" / "bert_layer.onnx").read_bytes()
    assert shipped == (ROOT / "examples" / "bert_layer.onnx").read_bytes()


def test_a_demo_that_fails_leaves_no_example(program):
    Path("cal.json").write_text("{}")
    assert program("demo", "--device", "cal.json") == 5
    assert not any(Path("campo_demo").iterdir())


def test_the_example_is_measured_unless_another_device_is_named(program, monkeypatch):
    from campo_onnx_cli import demo

    measured = []
    monkeypatch.setattr(demo, "measure_here", measured.append)
    assert program("demo") == 0
    assert measured == [Path("campo_demo/bert_layer.onnx")]
    assert program("demo", "--force", "--device", "h200") == 0
    assert len(measured) == 1


def test_another_machine_is_shown_a_prediction_only(program, capsys):
    assert program("demo") == 0
    printed = capsys.readouterr()
    assert "v100 (estimate from public figures)" in printed.out
    assert "easured" not in printed.err
