"""Verdicts for machines: JSON, JUnit XML, and annotations of GitHub's workflow log."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from campo_onnx.checking.verdict import Status, Verdict, Verdicts
from campo_onnx.errors import CampoError, UsageError
from campo_onnx.files import refuse_special
from campo_onnx.files.document_format import to_report

FORMAT_VERSION = 1
"""Version of the JSON document; raised when a reader of the old one would misread the new one."""

_SUITES = "campo-onnx check"
_PROLOG = '<?xml version="1.0" encoding="utf-8"?>\n'
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_json(checked: Sequence[Verdicts]) -> str:
    """Write verdicts as a versioned document.

    A value or limit is null where the rule has none, or it is not finite.
    """
    passed = all(verdicts.passed for verdicts in checked)
    graphs = [_graph(verdicts) for verdicts in checked]
    return to_report("campo-onnx check", FORMAT_VERSION, {"passed": passed, "graphs": graphs})


def _graph(verdicts: Verdicts) -> dict[str, Any]:
    error = verdicts.error
    return {
        "name": verdicts.name,
        "mixed": verdicts.mixed,
        "against": verdicts.against,
        "passed": verdicts.passed,
        "device": verdicts.device,
        "costs": verdicts.costs,
        "captured": verdicts.captured,
        "error": None if error is None else _error(error),
        "rules": [_rule(verdict) for verdict in verdicts.verdicts],
    }


def _error(error: CampoError) -> dict[str, Any]:
    """Tell an error as every command does with --json."""
    parts = {"what": error.what, "why": error.why, "remedy": error.remedy}
    return {"kind": type(error).__name__, "exit_code": error.exit_code, "message": str(error), **parts}


def _rule(verdict: Verdict) -> dict[str, Any]:
    finding = verdict.finding
    return {
        "rule": verdict.rule,
        "status": verdict.status.value,
        "reason": finding.reason,
        "value": finding.value,
        "limit": finding.limit,
        "parts": dict(finding.parts),
    }


def to_junit(checked: Sequence[Verdicts]) -> str:
    """Write verdicts as JUnit XML: a suite for each graph, a case for each rule.

    What could not be checked, or has no limit, counts as skipped. A graph that could not be
    checked at all has one case, ``check``, with an error.
    """
    root = ElementTree.Element("testsuites", name=_SUITES)
    for verdicts in checked:
        root.append(_suite(verdicts))
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    ElementTree.indent(root)
    return _PROLOG + ElementTree.tostring(root, encoding="unicode") + "\n"


def is_junit(path: Path) -> bool:
    """Whether a file is a report that :func:`to_junit` wrote."""
    start = f'{_PROLOG}<testsuites name="{_SUITES}"'.encode()
    try:
        refuse_special(path)
        with path.open("rb") as file:
            return file.read(len(start)) == start
    except (OSError, ValueError, UsageError):
        return False


def _suite(verdicts: Verdicts) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=_text(verdicts.name))
    for verdict in verdicts.verdicts:
        case = _case(suite, verdicts.name, verdict.rule)
        reason = _text(verdict.finding.reason)
        if verdict.status is Status.FAILED:
            ElementTree.SubElement(case, "failure", message=reason, type=verdict.rule).text = reason
        elif verdict.status is not Status.PASSED:
            ElementTree.SubElement(case, "skipped", message=f"{verdict.status.value}: {reason}")
    if verdicts.error is not None:
        case, message = _case(suite, verdicts.name, "check"), _text(str(verdicts.error))
        kind = type(verdicts.error).__name__
        ElementTree.SubElement(case, "error", message=message, type=kind).text = message
    suite.set("tests", str(len(suite)))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(len(suite.findall(f"testcase/{tag}"))))
    return suite


def _case(suite: ElementTree.Element, graph: str, rule: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=_text(graph), name=rule)


def _text(text: str) -> str:
    """Leave out what XML cannot hold: a tensor may have any name."""
    return _NOT_XML.sub("�", text)


def to_annotations(checked: Sequence[Verdicts]) -> str:
    """Write what GitHub shows at the files of a pull request: an error for each broken rule.

    A rule that could not be checked is a warning.
    """
    lines = []
    for verdicts in checked:
        if verdicts.error is not None:
            lines.append(_annotation("error", verdicts.mixed, "campo-onnx check", str(verdicts.error)))
        for verdict in verdicts.verdicts:
            if verdict.status in (Status.FAILED, Status.NOT_CHECKED):
                level = "error" if verdict.status is Status.FAILED else "warning"
                title = f"campo-onnx {verdict.rule} {verdict.status.value}"
                lines.append(_annotation(level, verdicts.mixed, title, verdict.finding.reason))
    return "".join(f"{line}\n" for line in lines)


def _annotation(level: str, file: str, title: str, message: str) -> str:
    return f"::{level} file={_property(file)},title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
