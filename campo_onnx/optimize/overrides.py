"""Overrides of a user that match nothing in the graph: most of them are misspelt."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from campo_onnx.ir.view import GraphView
from campo_onnx.ops.key import OpKey


def unmatched(
    view: GraphView, *, operators: Mapping[str, Sequence[str]], keep_fp32: Sequence[str] = ()
) -> tuple[str, ...]:
    """Find overrides that change nothing in a graph.

    Parameters
    ----------
    view
        The graph.
    operators
        Operators as the user wrote them, by option (``"--deny"``).
    keep_fp32
        Valid regular expressions for whole node names or operators.

    Returns
    -------
    tuple of str
        A sentence for each, with a suggestion where something similar is in the graph.
    """
    labels = sorted({node.op.label for node in view.nodes})
    names = [node.name for node in view.nodes]
    found = [
        f"{option} {text} matches no node of the graph.{_suggestion(text, labels)}"
        for option, texts in operators.items()
        for text in texts
        if OpKey.parse(text).label not in labels
    ]
    for text in keep_fp32:
        pattern = re.compile(text)
        if not any(map(pattern.fullmatch, (*labels, *names))):
            found.append(f"--keep-fp32 {text} matches no node of the graph.{_hint(pattern, labels, names)}")
    return tuple(found)


def _suggestion(text: str, known: Iterable[str]) -> str:
    near = get_close_matches(text, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _hint(pattern: re.Pattern[str], labels: Sequence[str], names: Sequence[str]) -> str:
    partial = next((name for name in (*labels, *names) if pattern.search(name)), None)
    if partial is not None:
        return f" It matches a part of {partial!r}; a whole name has to match, so add '.*'."
    return _suggestion(pattern.pattern, (*labels, *names))
