"""Checking many graphs: folders, verdicts as rows, and what makes a graph be checked again."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from campo_onnx.checking.batch import check_all, from_row, key_of, pairs_in, to_row
from campo_onnx.checking.policy import Pair, Policy
from campo_onnx.checking.verdict import Verdict, Verdicts, failed, not_checked
from campo_onnx.errors import PlanMismatchError, UsageError
from campo_onnx.ir.exporter import export_model
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.scale.results import Results
from campo_onnx.targets.target import target

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Three mixed graphs, one of them without its FP32 graph and one damaged; the working directory."""
    monkeypatch.chdir(tmp_path)
    optimized = optimize(MLP, Options(target=target("v100"), lists=preset("campo"), strategy="tf-amp"))
    for name in ("a", "b/c", "d"):
        for folder in ("mixed", "fp32"):
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
        export_model(optimized.model, tmp_path / "mixed" / f"{name}.onnx")
        (tmp_path / "fp32" / f"{name}.onnx").write_bytes(MLP.read_bytes())
    (tmp_path / "fp32" / "d.onnx").unlink()
    (tmp_path / "mixed" / "b" / "c.onnx").write_bytes(b"no model")
    return pairs_in(Path("mixed"), Path("fp32"), Policy(min_speedup=0.0))


def test_folders_give_pairs_by_path(folders):
    assert [pair.name for pair in folders] == ["a.onnx", "b/c.onnx", "d.onnx"]
    assert [verdicts.passed for verdicts in check_all(folders)] == [True, False, False]
    for mixed, against, why in (
        ("mixed", "fp32/a.onnx", "mixed is a folder and fp32/a.onnx is not"),
        ("mixed/a.onnx", "fp32", "fp32 is a folder and mixed/a.onnx is not"),
    ):
        with pytest.raises(UsageError, match=why):
            pairs_in(Path(mixed), Path(against), Policy())
    Path("empty").mkdir()
    with pytest.raises(UsageError, match=r"no \.onnx file below empty"):
        pairs_in(Path("empty"), Path("fp32"), Policy())


def test_verdicts_survive_being_kept(folders, tmp_path):
    once = check_all(folders)
    with Results(tmp_path / "rows.jsonl") as results:
        kept = check_all(folders, results=results)
    size = (tmp_path / "rows.jsonl").stat().st_size
    with Results(tmp_path / "rows.jsonl") as results:
        again = check_all(folders, results=results)
    assert (tmp_path / "rows.jsonl").stat().st_size == size
    assert [to_row(v) for v in once] == [to_row(v) for v in kept] == [to_row(v) for v in again]
    odd = Verdicts(
        name="x", mixed="m", against="f", device="v100", costs="datasheet",
        verdicts=(
            Verdict(rule="drift", finding=failed("far", value=math.inf, limit=0.01)),
            Verdict(rule="gain", finding=not_checked("why")),
        ),
    )  # fmt: skip
    assert from_row(json.loads(json.dumps(to_row(odd), allow_nan=False))) == odd
    wrong = replace(odd, verdicts=(), error=PlanMismatchError("w", why="y", remedy="R."))
    read = from_row(json.loads(json.dumps(to_row(wrong))))
    assert (type(read.error), str(read.error)) == (PlanMismatchError, str(wrong.error))


def test_a_graph_is_checked_again_when_anything_of_it_changed(folders):
    pair = folders[0]
    first = key_of(pair)
    assert key_of(replace(pair, policy=Policy(min_speedup=0.0))) == first
    changed: list[Pair] = [
        replace(pair, policy=replace(pair.policy, **limit))
        for limit in (
            {"max_drift": 0.5},
            {"target": target("v100")},
            {"lists": preset("tf2")},
            {"dims": {"n": 2}},
            {"keep_fp32": ("Gemm",)},
            {"strict": True},
            {"inputs": (Path("batch.npz"),)},
        )
    ]
    keys = [first, *map(key_of, changed)]
    pair.against.write_bytes(MLP.read_bytes() + b"\0")
    keys.append(key_of(pair))
    assert len({*keys}) == len(keys)
