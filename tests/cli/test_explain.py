"""``campo-onnx explain`` from the outside."""

import json
from functools import partial
from pathlib import Path

import pytest

from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.targets.target import target

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"


@pytest.fixture(scope="module")
def plan():
    return optimize(MLP, Options(target=target("v100"), lists=preset("tf115"), strategy="tf-amp")).plan


@pytest.fixture
def explain(program, tmp_path, plan):
    """Run the command in a folder that holds ``plan.json``; returns the exit code."""
    (tmp_path / "plan.json").write_text(plan.to_json())
    return partial(program, "explain")


def test_one_node_in_words(explain, plan, capsys):
    chosen = next(d for d in plan.decisions if d.is_lowered and d.op_type == "Gemm")
    assert explain("plan.json", chosen.node) == 0
    printed = capsys.readouterr().out
    for part in (chosen.node, "Gemm", "allow", "fp16", chosen.decided_by.value, chosen.reason):
        assert part in printed


def test_one_node_as_json(explain, plan, capsys):
    cast = next(cast for cast in plan.casts if cast.consumers)
    assert explain("plan.json", cast.consumers[0].node, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["node"] for row in document["decisions"]] == [cast.consumers[0].node]
    assert cast.tensor in {c["tensor"] for c in document["casts"]}


def test_without_a_node_the_ten_that_matter_most(explain, plan, capsys):
    assert explain("plan.json") == 0
    most = max(plan.decisions, key=lambda d: abs(d.gain_us))
    assert most.op_type in capsys.readouterr().out
    assert explain("plan.json", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["decisions"]
    assert len(rows) == 10
    gains = [abs(row["gain_us"]) for row in rows]
    assert gains == sorted(gains, reverse=True)


@pytest.mark.parametrize(
    ("content", "node", "expected"),
    [
        (None, (), ["plan.json", "does not exist"]),
        (b"", (), ["plan.json is not a plan file", "optimize MODEL -o MIXED --plan FILE"]),
        (b"hello", (), ["plan.json is not a plan file"]),
        (b"\xff\xfe\x00", (), ["plan.json is not a plan file"]),
        (b"[1, 2]", (), ["plan.json is not a plan file"]),
        (b"{}", (), ["plan.json is not a plan file"]),
        (b'{"format_version": 99}', (), ["plan.json was written by a newer campo-onnx", "format version 99"]),
        (b'{"format_version": 1, "casts": []}', (), ["plan.json cannot be read"]),
        ("plan", ("nothing_like_it",), ["unknown node or module 'nothing_like_it'"]),
    ],
)
def test_bad_input_is_one_message(explain, tmp_path, capsys, content, node, expected):
    if content is None:
        (tmp_path / "plan.json").unlink()
    elif content != "plan":
        (tmp_path / "plan.json").write_bytes(content)
    assert explain("plan.json", *node) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    for part in expected:
        assert part in printed.err


def test_a_folder_is_no_plan(explain, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    assert explain("folder") == 2
    assert "folder cannot be read" in capsys.readouterr().err


def test_a_misspelled_node_is_suggested(explain, plan, capsys):
    name = plan.decisions[0].node
    assert explain("plan.json", name + "x") == 2
    assert f"Did you mean {name!r}" in capsys.readouterr().err


def test_help_mentions_every_option(explain, capsys):
    assert explain("--help") == 0
    assert "--json" in capsys.readouterr().out
