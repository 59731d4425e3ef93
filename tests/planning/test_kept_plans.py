"""Plans kept in a folder: taken by any process, made again where they are of no use, never in the way."""

import hashlib
import json
import logging
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from onnx import parser

from campo_onnx import Options, Precision, oplists, target
from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.ir.flat_weights import FlatWeights
from campo_onnx.ir.importer import import_model
from campo_onnx.lowering.widen import widened
from campo_onnx.optimize.lists.oplists import with_overrides
from campo_onnx.optimize.plan.reason import Reason, Verdict
from campo_onnx.optimize.values.ranges import DeclaredRange
from campo_onnx.planning import kept_plans
from campo_onnx.planning.kept_plans import name_of, planned_once
from tests.fuzz.subjects import DATA

OPTIONS = Options(target=target("v100"), lists=oplists("tf115"), strategy="tf-amp")


@pytest.fixture(autouse=True)
def every_warning_is_heard():
    kept_plans._warn_once.cache_clear()


@pytest.fixture(scope="module")
def mlp():
    return import_model(DATA / "mlp.onnx")


def signed(document):
    """Give a plan the digest of what it now says, as somebody with this source could."""
    kept = {key: value for key, value in document.items() if key != "decisions_digest"}
    payload = json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps(kept | {"decisions_digest": hashlib.blake2b(payload, digest_size=16).hexdigest()})


def is_planned_again(imported, options, folder, monkeypatch):
    """Whether a plan is made, though a folder may have it."""
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return planned(*arguments)

    planned = kept_plans.planned
    with monkeypatch.context() as patch:
        patch.setattr(kept_plans, "planned", counted)
        planned_once(imported, options, folder)
    return bool(calls)


def test_files_that_are_one_graph_once_raised_have_plans_of_their_own():
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[8, 8] x, float16[8, 8] w) => (float[8, 8] y)
        { x16 = Cast<to = 10>(x) h = MatMul(x16, w) r = Relu(h) y = Cast<to = 1>(r) }"""
    half = widened(import_model(parser.parse_model(text)), OPTIONS.low)
    plain = import_model(half.model)
    assert plain.digest == half.digest
    partly = replace(half, low_as_given=half.low_as_given - {"Relu"})
    names = {
        name_of(each, OPTIONS) for each in (plain, half, partly, replace(half, low_as_given=frozenset()))
    }
    assert len(half.low_as_given - {"Relu"}) < len(half.low_as_given)
    assert len(names) == 4


# --- found again ---


def test_a_plan_is_kept_and_taken_again(mlp, tmp_path, monkeypatch):
    first, mixed = planned_once(mlp, OPTIONS, tmp_path)
    assert first.low_nodes
    monkeypatch.setattr("campo_onnx.planning.kept_plans.planned", None)  # not needed a second time
    second, again = planned_once(mlp, OPTIONS, tmp_path)
    assert (second, again) == (first, mixed)


@pytest.mark.slow
def test_another_process_finds_the_plan(tmp_path):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from campo_onnx import Options, oplists, target\n"
        "from campo_onnx.ir.importer import import_model\n"
        "from campo_onnx.planning.kept_plans import planned_once\n"
        "options = Options(target=target('v100'), lists=oplists('campo'), strategy='campo',\n"
        "                  dims={'b': 1, 'a': 2}, released={'p', 'q', 'r'})\n"
        "planned_once(import_model(sys.argv[1]), options, Path(sys.argv[2]))\n"
    )
    for seed in ("1", "2", "3"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        words = [sys.executable, "-c", program, str(DATA / "mlp.onnx"), str(tmp_path)]
        subprocess.run(words, check=True, env=environment)
        assert len(list(tmp_path.iterdir())) == 1


# --- what tells plans apart ---


def flat(view):
    return FlatWeights(sizes={view.inputs[0]: 64, view.inputs[1]: 64})


VERDICT = Verdict(decided_by=Reason.DATA_BUDGET)
CHANGES = {
    "target": target("h200"),
    "lists": with_overrides(oplists("tf115"), deny=["MatMul"]),
    "strategy": "fp32",
    "margin_us": float("inf"),
    "low": Precision.BF16,
    "keep_fp32": ("MatMul",),
    "dims": {"batch": 3},
    "costs": CostSource.MODEL,
    "evidence": Evidence(threads=1),
    "pads": False,
    "pad_threshold_us": 1.0,
    "min_gain": 0.5,
    "ranges": {"x": DeclaredRange(lowest=0.0, highest=1.0)},
    "forbidden": {"a": VERDICT},
    "released": {"a"},
    "flat_weights": flat,
    "lowers": False,
    "lowers_any": True,
}


def test_every_option_counts(mlp):
    options = {field.name for field in fields(Options)}
    assert options <= CHANGES.keys(), "a new option needs a value here that may change the plan"
    names = [name_of(mlp, replace(OPTIONS, **{name: CHANGES[name]})) for name in sorted(options)]
    assert len({name_of(mlp, OPTIONS), *names}) == len(names) + 1


def test_the_rules_and_the_stamp_count(mlp, monkeypatch):
    before = name_of(mlp, OPTIONS)
    monkeypatch.setattr(kept_plans, "VERSION", "0.0.1")
    assert name_of(mlp, OPTIONS) != before
    monkeypatch.undo()
    monkeypatch.setattr(kept_plans, "source_digest", lambda: "another rule")
    assert name_of(mlp, OPTIONS) != before
    monkeypatch.undo()
    _, mixed = planned_once(mlp, OPTIONS, None)
    stamped = import_model(mixed)
    assert name_of(stamped, OPTIONS) != name_of(replace(stamped, stamp=None), OPTIONS)


def test_a_plan_by_times_of_this_machine_is_not_kept(mlp, tmp_path):
    planned_once(mlp, replace(OPTIONS, costs=CostSource.AUTO), tmp_path)
    assert not list(tmp_path.iterdir())


# --- of no use ---


def test_what_cannot_be_used_is_made_again(mlp, tmp_path):
    first, mixed = planned_once(mlp, OPTIONS, tmp_path)
    path = tmp_path / name_of(mlp, OPTIONS)
    document = json.loads(path.read_text())
    assert document["casts"]
    casts, decisions = document["casts"], document["decisions"]
    unread = [row["node"] for row in decisions if row["node"] not in json.dumps(casts)]
    renamed = [row | {"node": "zzz"} if row["node"] == unread[0] else row for row in decisions]
    inconsistent = signed(document | {"casts": []}), signed(document | {"decisions": renamed})
    other, _ = planned_once(mlp, replace(OPTIONS, strategy="fp32"), None)
    for text in ("{", "[]", "\x00", *inconsistent, other.to_json()):
        path.write_text(text)
        assert planned_once(mlp, OPTIONS, tmp_path) == (first, mixed)
        assert path.read_text() == first.to_json()


@pytest.mark.parametrize("what", ["a file", "a folder in it", "a long name", "a null character", "a pipe"])
def test_a_folder_that_cannot_be_used_does_no_harm(mlp, tmp_path, caplog, what):
    folder = tmp_path / "plans"
    name = name_of(mlp, OPTIONS)
    if what == "a file":
        folder.write_text("not a folder")
    elif what == "a folder in it":
        (folder / name).mkdir(parents=True)
    elif what == "a long name":
        folder = tmp_path / ("x" * 300)
    elif what == "a null character":
        folder = Path("a\0b")
    elif hasattr(os, "mkfifo"):
        folder.mkdir()
        os.mkfifo(folder / name)
    with caplog.at_level(logging.WARNING, logger="campo_onnx"):
        plan, mixed = planned_once(mlp, OPTIONS, folder)
        planned_once(mlp, OPTIONS, folder)
    assert (plan, mixed) == planned_once(mlp, OPTIONS, None)
    assert plan.low_nodes
    assert len([r for r in caplog.records if "plans are not kept in" in r.getMessage()]) == 1


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_folder_without_permission_does_no_harm(mlp, tmp_path):
    folder = tmp_path / "plans"
    folder.mkdir(mode=0o000)
    try:
        assert planned_once(mlp, OPTIONS, folder) == planned_once(mlp, OPTIONS, None)
    finally:
        folder.chmod(0o700)


def test_a_full_disk_does_no_harm(mlp, tmp_path, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert planned_once(mlp, OPTIONS, tmp_path) == planned_once(mlp, OPTIONS, None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["somebody's thesis", ""])
def test_a_link_lets_no_other_file_be_overwritten(mlp, tmp_path, monkeypatch, text):
    other, folder = tmp_path / "thesis.txt", tmp_path / "plans"
    other.write_text(text)
    folder.mkdir()
    path = folder / name_of(mlp, OPTIONS)
    path.symlink_to(other)
    plan, _ = planned_once(mlp, OPTIONS, folder)
    assert other.read_text() == text
    assert not path.is_symlink()
    assert path.read_text() == plan.to_json()
    assert not is_planned_again(mlp, OPTIONS, folder, monkeypatch)
