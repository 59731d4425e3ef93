"""JSON, JUnit and GitHub annotations of the same verdicts."""

import json

import pytest

from campo_onnx.checking.reports import to_annotations, to_json, to_junit
from campo_onnx.checking.verdict import (
    Verdict,
    Verdicts,
    failed,
    not_asked,
    not_checked,
    passed,
)
from campo_onnx.errors import PlanMismatchError

BAD = Verdicts(
    name='a "name" <&>',
    mixed="graphs/a,b:c.onnx",
    against="f.onnx",
    verdicts=(
        Verdict(rule="valid", finding=passed("fine")),
        Verdict(rule="drift", finding=failed("'x\x00\n100%' is off", value=float("inf"), limit=0.01)),
        Verdict(rule="loadable", finding=not_checked("no kernel")),
        Verdict(rule="plan", finding=not_asked("no baseline")),
    ),
    device="v100",
    costs="datasheet",
)
STRANGER = Verdicts(name="other", mixed="o.onnx", against="f.onnx", error=PlanMismatchError("not it"))
GOOD = Verdicts(
    name="good", mixed="g.onnx", against="f.onnx", verdicts=(Verdict(rule="valid", finding=passed("fine")),)
)


def test_json_is_one_document_with_the_documented_keys():
    document = json.loads(to_json([BAD, STRANGER, GOOD]), parse_constant=pytest.fail)
    assert document.keys() == {"kind", "format_version", "passed", "graphs"}
    assert (document["format_version"], document["passed"]) == (1, False)
    bad, stranger, good = document["graphs"]
    keys = {"name", "mixed", "against", "passed", "device", "costs", "captured", "error", "rules"}
    assert bad.keys() == stranger.keys() == good.keys() == keys
    assert [graph["passed"] for graph in (bad, stranger, good)] == [False, False, True]
    parts = {"what": "not it", "why": "", "remedy": ""}
    assert stranger["error"] == {"kind": "PlanMismatchError", "exit_code": 7, "message": "not it.", **parts}
    assert bad["rules"][1] == {
        "rule": "drift",
        "status": "failed",
        "reason": "'x\x00\n100%' is off",
        "value": None,
        "limit": 0.01,
        "parts": {},
    }
    assert json.loads(to_json([GOOD]))["passed"] is True


def test_junit_as_a_real_parser_reads_it(tmp_path):
    import junitparser

    (tmp_path / "report.xml").write_text(to_junit([BAD, STRANGER, GOOD]), encoding="utf-8")
    report = junitparser.JUnitXml.fromfile(str(tmp_path / "report.xml"))
    assert (report.tests, report.failures, report.errors, report.skipped) == (6, 1, 1, 2)
    bad, stranger, good = report
    assert [suite.name for suite in (bad, stranger, good)] == ['a "name" <&>', "other", "good"]
    cases = {case.name: case for case in bad}
    assert list(cases) == ["valid", "drift", "loadable", "plan"]
    assert cases["valid"].is_passed
    (failure,) = cases["drift"].result
    assert isinstance(failure, junitparser.Failure)
    assert failure.message == failure.text == "'x�\n100%' is off"
    assert [cases[name].is_skipped for name in ("loadable", "plan")] == [True, True]
    assert cases["loadable"].result[0].message == "not checked: no kernel"
    (case,) = stranger
    assert isinstance(case.result[0], junitparser.Error)
    assert (case.result[0].type, case.result[0].message) == ("PlanMismatchError", "not it.")
    report.update_statistics()
    assert (report.tests, report.failures, report.errors, report.skipped) == (6, 1, 1, 2)
    assert all(case.is_passed for case in good)


def test_annotations_escape_what_would_end_them():
    file = "file=graphs/a%2Cb%3Ac.onnx"
    assert to_annotations([BAD, STRANGER, GOOD]).splitlines() == [
        f"::error {file},title=campo-onnx drift failed::'x\x00%0A100%25' is off",
        f"::warning {file},title=campo-onnx loadable not checked::no kernel",
        "::error file=o.onnx,title=campo-onnx check::not it.",
    ]
    assert to_annotations([GOOD]) == ""
