"""Op lists in few words, for the tests of presets and of users' files."""

from pathlib import Path

from campo_onnx.ops.key import OpKey
from campo_onnx.optimize.lists.oplists import OpLists

DOC = Path(__file__).parents[2] / "docs" / "op-lists.md"


def keys(labels: str) -> set[OpKey]:
    return {OpKey.parse(label) for label in labels.split()}


def placed(lists: OpLists) -> frozenset[OpKey]:
    return frozenset().union(*lists.tables.values())


def differences(a: OpLists, b: OpLists) -> dict[tuple[str, str], set[OpKey]]:
    ops: dict[tuple[str, str], set[OpKey]] = {}
    for op in placed(a) | placed(b):
        pair = (a.class_of(op).value, b.class_of(op).value)
        if pair[0] != pair[1]:
            ops.setdefault(pair, set()).add(op)
    return ops
