"""``campo-onnx check`` of two folders: by one process, kept results, and what cannot be combined."""

import json
from functools import partial
from pathlib import Path

from campo_onnx.files.codec import fingerprint
from campo_onnx.ir.exporter import export_model
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import optimize
from campo_onnx.targets.target import target

MLP = Path(__file__).parent.parent / "data" / "mlp.onnx"


def test_folders_and_results(program, tmp_path, capsys):
    check = partial(program, "check", "mixed", "--against", "fp32", "--min-speedup", "0", "--json")
    optimized = optimize(MLP, Options(target=target("v100"), lists=preset("campo"), strategy="tf-amp"))
    for folder in ("mixed", "fp32"):
        (tmp_path / folder).mkdir()
    for name in ("a", "b"):
        export_model(optimized.model, tmp_path / "mixed" / f"{name}.onnx")
    (tmp_path / "fp32" / "a.onnx").write_bytes(MLP.read_bytes())
    assert check() == 2  # b.onnx has no FP32 graph
    alone = capsys.readouterr().out
    for _ in range(2):
        assert check("--results", "rows.jsonl") == 2
        assert capsys.readouterr().out == alone
        assert len(Path("rows.jsonl").read_text().splitlines()) == 2
    assert check("--results", "mixed/a.onnx") == 2
    assert "mixed/a.onnx, line 1 is not a result of campo-onnx" in capsys.readouterr().err
    one = (
        "check",
        "mixed/a.onnx",
        "--against",
        "fp32/a.onnx",
        "--min-speedup",
        "0",
        "--results",
        "one.jsonl",
    )
    assert program(*one) == 0
    assert len(Path("one.jsonl").read_text().splitlines()) == 1
    capsys.readouterr()
    refuse_edited(check, Path("rows.jsonl"), capsys)
    assert check("--baseline", "plan.json") == 2
    assert "--baseline cannot be combined with folders" in capsys.readouterr().err
    assert check("--cluster", "auto", "--workers", "2") == 2
    assert "both --workers and --cluster ADDRESS are given" in capsys.readouterr().err


def refuse_edited(check, path, capsys):
    """Kept verdicts that somebody edited: one message, and the file stays as it is."""
    kept = path.read_text()
    for old, new in (('"passed"', '"failed"'), ('"kind": "UsageError"', '"kind": "PlanMismatchError"')):
        path.write_text(kept.replace(old, new))
        assert path.read_text() != kept
        assert check("--results", str(path)) == 2
        assert "was changed since it was written: its digest does not fit it" in capsys.readouterr().err
        assert path.read_text() == kept.replace(old, new)
    path.write_text(kept)
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    error = next(row["value"]["error"] for row in (first, second) if row["value"]["error"])
    for value in (7, first["value"] | {"error": error | {"kind": "errno"}}, first["value"] | {"device": []}):
        row = first | {"value": value, "digest": fingerprint([first["key"], value])}
        text = "".join(f"{json.dumps(row)}\n" for row in (row, second))
        path.write_text(text)
        assert check("--results", str(path)) == 2
        assert "rows.jsonl hold something else than verdicts" in capsys.readouterr().err
        assert path.read_text() == text
