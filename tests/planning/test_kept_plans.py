"""Plans kept in a folder: taken again, and made again where they are of no use."""

import hashlib
import json
from dataclasses import replace

from campo_onnx import Options, device, oplists
from campo_onnx.ir.importer import import_model
from campo_onnx.planning.kept_plans import name_of, planned_once
from tests.fuzz.subjects import DATA

OPTIONS = Options(device=device("v100"), lists=oplists("tf115"), strategy="tf-amp")


def signed(document):
    """Give a plan the digest of what it now says, as somebody with this source could."""
    kept = {key: value for key, value in document.items() if key != "decisions_digest"}
    payload = json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps(kept | {"decisions_digest": hashlib.blake2b(payload, digest_size=16).hexdigest()})


def test_a_plan_is_kept_and_taken_again(tmp_path, monkeypatch):
    given = import_model(DATA / "mlp.onnx")
    first, mixed = planned_once(given, OPTIONS, tmp_path)
    assert first.low_nodes
    monkeypatch.setattr("campo_onnx.planning.kept_plans.decide", None)  # not needed a second time
    second, again = planned_once(given, OPTIONS, tmp_path)
    assert (second, again) == (first, mixed)


def test_other_options_have_another_file():
    given = import_model(DATA / "mlp.onnx")
    others = replace(OPTIONS, keep_fp32=("MatMul",)), replace(OPTIONS, device=device("h200"))
    assert len({name_of(given, options) for options in (OPTIONS, *others)}) == 3


def test_what_cannot_be_used_is_made_again(tmp_path):
    given = import_model(DATA / "mlp.onnx")
    first, mixed = planned_once(given, OPTIONS, tmp_path)
    path = tmp_path / name_of(given, OPTIONS)
    document = json.loads(path.read_text())
    assert document["casts"]
    casts, decisions = document["casts"], document["decisions"]
    unread = [row["node"] for row in decisions if row["node"] not in json.dumps(casts)]
    renamed = [row | {"node": "zzz"} if row["node"] == unread[0] else row for row in decisions]
    inconsistent = signed(document | {"casts": []}), signed(document | {"decisions": renamed})
    for text in ("{", "[]", *inconsistent):
        path.write_text(text)
        assert planned_once(given, OPTIONS, tmp_path) == (first, mixed)
        assert path.read_text() == first.to_json()
