"""Overrides of a user that match nothing in the graph: most of them are misspelt."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

import onnx

from campo_onnx.ir.view import GraphView
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.registry import current
from campo_onnx.optimize.lists.oplists import OpLists
from campo_onnx.optimize.name_patterns import first_partly_matching, matching, pattern_of

_MOST_MISSPELT = 20  # of a file, which may name thousands


def unmatched(
    view: GraphView,
    *,
    operators: Mapping[str, Sequence[str]],
    keep_fp32: Sequence[str] = (),
    lists: OpLists | None = None,
) -> tuple[str, ...]:
    """Find overrides that change nothing in a graph.

    `lists`: lists from a file of the user's. It may name operators that this graph lacks, but none that no
    graph has.
    """
    labels = sorted({node.op.label for node in view.nodes})
    names = [node.name for node in view.nodes]
    if keep_fp32:
        names += dict.fromkeys(module for node in view.nodes for module in node.modules)
    lines = [
        f"{option} {text} matches no node of the graph.{_suggestion(text, labels)}"
        for option, texts in operators.items()
        for text in texts
        if OpKey.parse(text).label not in labels
    ]
    for text in keep_fp32:
        pattern = pattern_of(text)
        if not matching([pattern], (*labels, *names)):
            lines.append(f"--keep-fp32 {text} matches no node of the graph.{_hint(pattern, labels, names)}")
    return (*lines, *(_misspelt(lists, labels) if lists is not None else ()))


def _misspelt(lists: OpLists, labels: Sequence[str]) -> Iterator[str]:
    """Operators of domains that we know in full, which are neither in them nor in the graph."""
    existing = {op.label for op in current().specs} | {schema.name for schema in onnx.defs.get_all_schemas()}
    named = sorted(op for ops in lists.tables.values() for op in ops)
    misspelt = [op for op in named if op.domain == "" and op.label not in existing and op.label not in labels]
    for op in misspelt[:_MOST_MISSPELT]:  # a file may name thousands, and each is compared with all
        suggestion = _suggestion(op.label, sorted(existing))
        yield f"the lists {lists.name} name {op.label}, which ONNX does not define.{suggestion}"
    if len(misspelt) > _MOST_MISSPELT:
        more = len(misspelt) - _MOST_MISSPELT
        yield f"the lists {lists.name} name {more} more operators that ONNX does not define."


def _suggestion(text: str, candidates: Iterable[str]) -> str:
    near = get_close_matches(text, list(candidates), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _hint(pattern: re.Pattern[str], labels: Sequence[str], names: Sequence[str]) -> str:
    partial = first_partly_matching(pattern, (*labels, *names))
    if partial is not None:
        return f" It matches a part of {partial!r}; a whole name has to match, so add '.*'."
    return _suggestion(pattern.pattern, (*labels, *names))
