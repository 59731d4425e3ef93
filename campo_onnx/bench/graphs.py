"""The graphs to time: read, given distinct names, and checked to have the same interface."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from campo_onnx.errors import CampoError, UsageError
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.interface import differences
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import as_it_runs
from campo_onnx.step.interface import paired_interface

_SUFFIX = ".onnx"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """A graph to time."""

    name: str  # its name in results, unique within one benchmark
    imported: Imported


def read_graphs(
    paths: Sequence[Path], dims: Mapping[str, int] | None = None, place: Place | None = None
) -> tuple[Graph, ...]:
    """Read graphs and give each a name of its own.

    The same file may be named twice, to see by how much measurements of equal graphs differ. `place` is where
    they are to run: each is brought into the form that runs there; None leaves them as they are.
    """
    graphs = (import_model(path, dims) for path in paths)
    forms = graphs if place is None else (as_it_runs(graph, place, dims) for graph in graphs)
    return tuple(
        Graph(name=name, imported=form) for name, form in zip(distinct_names(paths), forms, strict=True)
    )


def distinct_names(paths: Sequence[Path]) -> tuple[str, ...]:
    """Name each file by the shortest end of its path that is unique.

    >>> distinct_names([Path("step.onnx"), Path("mixed.onnx"), Path("step.onnx")])
    ('step', 'mixed', 'step (2)')
    >>> distinct_names([Path("old/step.onnx"), Path("new/step.onnx")])
    ('old/step', 'new/step')
    """
    parts = [(*(whole := path.absolute()).parts[:-1], whole.name.removesuffix(_SUFFIX)) for path in paths]
    names: list[str] = []
    for own in parts:
        others = [other for other in parts if other != own]
        depth = next(d for d in range(1, len(own) + 1) if all(other[-d:] != own[-d:] for other in others))
        name = Path(*own[-depth:]).as_posix()
        earlier = sum(other == own for other in parts[: len(names)])
        names.append(f"{name} ({earlier + 1})" if earlier else name)
    return tuple(names)


def check_same_interface(graphs: Sequence[Graph]) -> None:
    """Refuse graphs whose interfaces differ.

    Inputs and outputs must have the same names, types and shapes; their order may differ. UsageError says the
    first difference, that there is no graph, or that two have the same name.
    """
    if not graphs:
        raise UsageError("there is no graph to time", remedy="Name at least one.")
    if len({graph.name for graph in graphs}) < len(graphs):
        raise UsageError("two graphs have the same name", remedy="Give each a name of its own.")
    first = graphs[0]
    for other in graphs[1:]:
        if difference := next(differences(first.imported.view, other.imported.view), ""):
            raise UsageError(
                f"{first.name} and {other.name} have different interfaces",
                why=difference,
                remedy="Time graphs with the same inputs and outputs, bound to the same sizes with --dim.",
            )


def batch_size(graph: Graph) -> int | None:
    """Samples per step: the leading dimension that all tensors of the batch share.

    The batch is every input that is neither state nor a scalar. None where the batch size cannot be
    inferred, as in a graph without state, whose weights look like its batch.
    """
    imported = graph.imported
    try:
        interface = paired_interface(imported.view, constants=imported.constants)
    except CampoError:
        return None
    if not interface.state:
        return None
    sizes = {spec.shape[0] for spec in interface.feeds.values() if spec.shape}
    return sizes.pop() if len(sizes) == 1 else None
