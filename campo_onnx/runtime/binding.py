"""Names of what is bound to a program's inputs and outputs, held against those of its graph."""

from collections.abc import Iterable, Sequence

from campo_onnx.errors import UnsupportedModelError

_LISTED = 5


def refuse_missing(kind: str, names: Iterable[str], expected: Sequence[str]) -> None:
    """Refuse inputs or outputs (`kind`) of a graph to which nothing is bound."""
    bound = set(names)
    missing = [repr(name) for name in expected if name not in bound]
    if missing:
        listed = ", ".join(missing[:_LISTED])
        raise UnsupportedModelError(
            f"{len(missing)} {kind}s of the graph are not bound",
            why=f"a value is missing for {listed}{', ...' if len(missing) > _LISTED else ''}",
        )


def refuse_unknown(kind: str, names: Iterable[str], expected: Iterable[str]) -> None:
    """Refuse names of inputs or outputs (`kind`) that a graph lacks."""
    there = set(expected)
    unknown = [repr(name) for name in names if name not in there]
    if unknown:
        raise UnsupportedModelError(f"the graph does not have the {kind} {unknown[0]}")
