"""One graph for a range of sizes, from a function that gives the graph at any of them."""

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import onnx

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.size_ranges import SizeRange
from campo_onnx.ir.sizes.any_size import AnySize, Example, any_size, skeleton
from campo_onnx.ir.sizes.formulas import Sizes

_FEWEST = 5
"""Sizes at which a graph has the same form: formulas are read off at all but the last, and compared there."""

_WITHIN = (0.37, 0.71, 0.53, 0.29, 0.83, 0.61, 0.17, 0.93)
"""Shares of a range at which graphs are looked at besides its ends, until enough have one form."""


Structure: TypeAlias = Sequence[Hashable]
"""The source of a graph, in parts that are the same at all sizes, but for sizes themselves."""


def learned(
    at: Callable[[Sizes], onnx.ModelProto],
    ranges: Mapping[str, SizeRange],
    structure: Callable[[Sizes], Structure] | None = None,
) -> AnySize:
    """Find the graph that holds at every size of some ranges.

    Formulas are read off at the ends of the ranges, at the example and between them. At sizes that happen to
    be those of other axes (a batch of 8 with 8 heads) a graph may be written more simply. The form of most
    sizes holds there as well, if the graph is translated from the same: `structure` tells.

    `at`: gives the graph at sizes in the order of `ranges`.
    `structure`: gives what the graph is translated from; without it, graphs must have one form at all sizes.

    Raises UnsupportedModelError if graphs differ in more than constants and shapes, or no formula tells
    these.
    """
    example = tuple(sizes.example for sizes in ranges.values())
    forms: dict[Any, list[Example]] = {}
    tried: list[Example] = []
    least = _FEWEST + 2 * (len(ranges) - 1)
    for i, sizes in enumerate(_points(list(ranges.values()), structure is not None)):
        if i >= len(_ends(list(ranges.values()))) and len(max(forms.values(), key=len)) >= least:
            break
        tried.append(Example(sizes, at(sizes)))
        forms.setdefault(skeleton(tried[-1].model), []).append(tried[-1])
        if structure is None and len(forms) > 1:
            why = _first_other(tried[0].model, tried[-1].model)
            raise _differs(ranges, example, sizes, why)
    alike = max(forms.values(), key=len)
    graph = any_size(alike[:-1] if len(alike) > least else alike)
    if graph is None:
        raise _differs(ranges, alike[0].sizes, alike[1].sizes, "no formula tells its constants or shapes")
    for each in tried:
        if each in alike:
            if not graph.describes(each):
                raise _differs(
                    ranges, alike[0].sizes, each.sizes, "its constants or shapes follow no formula"
                )
        elif structure is None or not _same_but_sizes(
            [structure(a.sizes) for a in alike], structure(each.sizes)
        ):
            raise _differs(ranges, alike[0].sizes, each.sizes, _first_other(alike[0].model, each.model))
    return graph


def _same_but_sizes(examples: Sequence[Structure], other: Structure) -> bool:
    """Whether a structure is that of the examples wherever these agree."""
    if any(len(each) != len(other) for each in examples):
        return False
    columns = zip(*examples, strict=True)
    return all(part in column or len(set(column)) > 1 for part, column in zip(other, columns, strict=True))


def _ends(ranges: Sequence[SizeRange]) -> list[Sizes]:
    """Give the example and the ends, in every combination of up to two dimensions."""
    ends = [(r.least, r.most) for r in ranges]
    corners = list(itertools.product(*ends)) if len(ranges) < 3 else list(zip(*ends, strict=True))
    if len(ranges) >= 3:  # each dimension apart from the others
        corners += [
            tuple(r.most if i == k else r.example for i, r in enumerate(ranges)) for k in range(len(ranges))
        ]
    return list(dict.fromkeys([tuple(r.example for r in ranges), *corners]))


def _points(ranges: Sequence[SizeRange], more: bool) -> list[Sizes]:
    """Choose sizes to look at: the ends, then some between them."""
    shares = _WITHIN if more else _WITHIN[:3]
    within = [
        tuple(
            round(r.least + shares[(k + 3 * i) % len(shares)] * (r.most - r.least))
            for i, r in enumerate(ranges)
        )
        for k in range(len(shares))
    ]
    return list(dict.fromkeys([*_ends(ranges), *within]))


def _first_other(one: onnx.ModelProto, other: onnx.ModelProto) -> str:
    for a, b in itertools.zip_longest(one.graph.node, other.graph.node):
        if a is None or b is None or (a.op_type, a.name) != (b.op_type, b.name):
            before, after = ("nothing" if node is None else repr(node.name) for node in (a, b))
            return f"{after} takes the place of {before}"
        if list(a.attribute) != list(b.attribute):
            return f"attributes of {a.name!r} depend on them"
    return "its nodes read other tensors"


def _differs(ranges: Mapping[str, SizeRange], first: Sizes, other: Sizes, why: str) -> UnsupportedModelError:
    def spelled(sizes: Sizes) -> str:
        return ", ".join(f"{name}={size}" for name, size in zip(ranges, sizes, strict=True))

    return UnsupportedModelError(
        f"the graph at {spelled(other)} is another one than at {spelled(first)}",
        why=why,
        remedy="Narrow the range, as with torch.export.Dim(name, min=2), or export one file for each size.",
    )
