"""``optimize --rules`` and ``explain --rules``."""

import json
from pathlib import Path

import numpy as np
import pytest

from campo_onnx.ir.importer import import_model
from campo_onnx.runtime.feeds import synthesize

DATA = Path(__file__).parents[1] / "data"
MLP = DATA / "mlp.onnx"
WORDS = ("optimize", MLP, "--device", "v100", "--costs", "datasheet", "--min-gain", "0", "--deny", "MatMul")
RESBLOCKS = ("optimize", DATA / "resblocks.onnx", "--device", "v100", "--execution", "graph")


def test_prices_are_printed_kept_and_shown(program, capsys) -> None:
    written = ("-o", "m.onnx", "--plan", "plan.json", "--report", "r.html", "--probe", "off")
    assert program(*RESBLOCKS, "--deny", "Conv", "--rules", *written) == 0
    assert "What each rule costs" in capsys.readouterr().out
    assert program("explain", "plan.json", "--rules", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    row = next(row for row in document["prices"] if row["title"] == "Conv is on the deny list")
    assert (row["rule"], row["error"], document["error"]) == ("deny-list", None, None)
    assert row["price_us"] > 0
    assert program("explain", "plan.json", "--rules", "--format", "csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "price_us,share,nodes,error,rule"
    assert len(lines) == 1 + len(document["prices"])
    page = Path("r.html").read_text(encoding="utf-8")
    assert "Conv is on the deny list" in page
    assert program("explain", "plan.json", "--report", "again.html") == 0
    assert row["sentence"] in Path("again.html").read_text(encoding="utf-8")


def test_errors_come_from_batches(program, capsys) -> None:
    pytest.importorskip("onnxruntime")
    np.savez("batch.npz", **synthesize(import_model(MLP).view, seed=0))
    assert program(*WORDS, "--rules", "--inputs", "batch.npz", "-o", "m.onnx", "--plan", "plan.json") == 0
    capsys.readouterr()
    assert program("explain", "plan.json", "--rules", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["error"] is not None
    assert all(row["error"] is not None or row["breaks"] for row in document["prices"])


def test_rules_that_cost_nothing_are_one_line(program, capsys) -> None:
    assert program(*WORDS, "--rules", "--dry-run", "--probe", "off") == 0
    assert "No rule costs anything" in capsys.readouterr().out


def test_a_plan_without_prices_says_how_to_get_them(program, capsys) -> None:
    assert program(*WORDS, "-o", "m.onnx", "--plan", "plan.json") == 0
    assert program("explain", "plan.json", "--rules") == 2
    assert "campo-onnx optimize MODEL --rules --plan plan.json" in capsys.readouterr().err
    assert program("explain", "plan.json", "a_node", "--rules") == 2
    assert "--rules is about the whole plan" in capsys.readouterr().err


def test_a_result_has_no_prices(program, capsys) -> None:
    words = [word for word in WORDS if word not in ("--deny", "MatMul")]
    assert program(*words, "--strategy", "tf-amp", "-o", "m.onnx") == 0
    assert program("optimize", "m.onnx", "--device", "v100", "--rules", "-o", "again.onnx") == 0
    assert "no rule decides about it" in " ".join(capsys.readouterr().err.split())
