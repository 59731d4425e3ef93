"""Checks of the data of a graph: a session gives what they look at, and torch raises the error.

No index points outside of what it looks up in: where eager raises an IndexError, a session must not go on.
ONNX counts a negative index from the end, and a GPU's kernels read or skip what lies outside: a label of -1
would train the last class. So each index is checked unless its range is proved: by torch before the session
runs, where it is made of the arguments in a few steps, otherwise by an output of the graph.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from campo_onnx.errors import IndexOutOfRangeError
from campo_onnx.export.torch.indices import MOVES, WHOLE, IndexUse, index_uses, is_bounded, range_of
from campo_onnx.integrations.torch_compile.concrete import Uncompiled
from campo_onnx.ir.walk import Walk

aten = torch.ops.aten

CHECKS = frozenset({aten._assert_async.default, aten._assert_async.msg})
"""Operations without a result, which raise an error where a truth value is false."""


class Check(NamedTuple):
    """A condition, by its place among a graph's results, and the message or error where it is false."""

    result: Any
    message: str
    error: Exception | None = None


def add_check(graph: torch.fx.Graph, verdict: torch.fx.Node, error: Exception) -> None:
    """Let a graph check a truth value that it computes."""
    with graph.inserting_after(verdict):
        graph.call_function(aten._assert_async.msg, (verdict, str(error))).meta["error"] = error


def lift_checks(graph: torch.fx.Graph) -> list[tuple[str, Exception | None]]:
    """Let a graph give what is checked, behind its results; return what each check says or raises."""
    nodes = [node for node in graph.nodes if node.op == "call_function" and node.target in CHECKS]
    output = graph.output_node()
    results = output.args[0] if isinstance(output.args[0], list | tuple) else (output.args[0],)
    output.args = ((*results, *(node.args[0] for node in nodes)),)
    for node in nodes:
        graph.erase_node(node)
    return [
        (str(node.args[1]) if len(node.args) > 1 else "a check failed", node.meta.get("error"))
        for node in nodes
    ]


def raise_failed(checks: Sequence[Check], value_of: Callable[[Any], torch.Tensor]) -> None:
    """Raise the error of the first check that fails; on CUDA it surfaces as eager's does.

    RuntimeError has the message of the check, unless that says which error to raise.
    """
    for check in checks:
        verdict = value_of(check.result)
        if check.error is not None and not verdict.is_cuda and not verdict:
            raise check.error.with_traceback(None)
        torch._assert_async(verdict, check.message)


_MOST_STEPS = 64
"""Operations that torch may run before a session for the sake of one index."""


@dataclass(frozen=True, kw_only=True)
class IndexGuard:
    """Checks the indices that are made of a graph's arguments in a few steps.

    `checks` have the name of each index with what it must be, and the function of those arguments that gives
    it.
    """

    positions: tuple[int, ...] = ()  # which arguments are read; what is drawn comes after them
    checks: tuple[tuple[str, IndexUse], ...] = ()
    indices: Callable[..., Sequence[torch.Tensor]] = field(default=lambda *_: ())

    def check(self, value: Any) -> None:
        """Check the arguments of a call; on CUDA the error surfaces later, as eager's does."""
        if not self.checks:
            return
        with torch.no_grad():
            try:
                indices = self.indices(*(value[position] for position in self.positions))
            except IndexError as error:  # of a lookup that makes an index
                names = " and ".join(sorted({repr(name) for name, _ in self.checks}))
                raise IndexOutOfRangeError(
                    f"an index made of {names} is out of range", why=str(error).partition("\n")[0]
                ) from None
            for (name, use), index in zip(self.checks, indices, strict=True):
                _check(name, use, index)


def _check(name: str, use: IndexUse, index: torch.Tensor) -> None:
    if use.ignored is not None:
        index = torch.where(index == use.ignored, use.lowest, index)
    if index.is_cuda:
        inside = ((index >= use.lowest) & (index < use.size)).all()
        torch._assert_async(inside, f"an index of {name!r} is out of range")
        return
    lowest, highest = (int(end) for end in torch.aminmax(index))
    if lowest < use.lowest or highest >= use.size:
        raise outside(lowest if lowest < use.lowest else highest, name, use)


def outside(number: int | None, name: str, use: IndexUse) -> IndexOutOfRangeError:
    """Make the error of an index that lies outside; its value is None where nobody knows it."""
    shown = "an index" if number is None else f"the index {number}"
    left_out = f", and leaves out {use.ignored}" if use.ignored is not None else ""
    return IndexOutOfRangeError(
        f"{shown} of {name!r} is out of range",
        why=f"{use.operation} takes {use.lowest} to {use.size - 1}{left_out}",
    )


def add_index_check(graph: torch.fx.Graph, index: torch.fx.Node, use: IndexUse, name: str) -> None:
    """Let the graph check an index that only it can make."""
    last = index

    def call(target: Any, *args: Any) -> torch.fx.Node:
        nonlocal last
        with graph.inserting_after(last):
            last = graph.call_function(target, args)
        last.meta["val"] = target(*(a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args))
        return last

    above = call(aten.ge.Scalar, index, use.lowest)
    inside = call(aten.logical_and.default, above, call(aten.lt.Scalar, index, use.size))
    if use.ignored is not None:
        inside = call(aten.logical_or.default, inside, call(aten.eq.Scalar, index, use.ignored))
    add_check(graph, call(aten.all.default, inside), outside(None, name, use))


def guard_indices(
    graph: torch.fx.Graph,
    position: Mapping[torch.fx.Node, int],
    names: Mapping[torch.fx.Node, str],
    place_of: Callable[[torch.fx.Node], str],
) -> IndexGuard:
    """Have each index of a graph checked: those that torch may make before it runs by a guard, others by it.

    The graph is of static sizes; it is changed where it checks indices itself.
    """
    few: list[tuple[torch.fx.Node, IndexUse, frozenset[torch.fx.Node]]] = []
    uses = index_uses(graph, lambda node: node.meta.get("partitioner_tag") == "is_backward")
    for index, use in dict.fromkeys((index, use) for _, index, use in uses):
        steps = _steps(index)
        if steps is None:
            place = place_of(index)
            add_index_check(graph, index, use, f"{index.name} (in {place})" if place else index.name)
        else:
            few.append((index, use, steps))
    if not few:
        return IndexGuard()
    needed = {node for *_, steps in few for node in steps}
    alone = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        if node in needed:
            copies[node] = alone.node_copy(node, copies.__getitem__)
            copies[node].meta = {}  # which would keep the whole graph
    alone.output([copies[index] for index, *_ in few])
    return IndexGuard(
        positions=tuple(position[node] for node in copies if node.op == "placeholder"),
        checks=tuple((_name(steps, names), use) for _, use, steps in few),
        indices=torch.fx.Interpreter(Uncompiled(graph.owning_module, alone)).run,
    )


def _name(steps: frozenset[torch.fx.Node], names: Mapping[torch.fx.Node, str]) -> str:
    return " and ".join(names[node] for node in sorted(steps, key=str) if node.op == "placeholder")


def _steps(index: torch.fx.Node) -> frozenset[torch.fx.Node] | None:
    """Give what an index is made of, if that are arguments and a few cheap operations; else None."""
    walk = Walk([index])
    for node in walk:
        if len(walk.seen) > _MOST_STEPS or not (node.op in ("placeholder", "get_attr") or _is_cheap(node)):
            return None
        walk.add(node.all_input_nodes)
    return frozenset(walk.seen)


def _is_cheap(node: torch.fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        return False
    is_whole = node.meta["val"].dtype in WHOLE if isinstance(node.meta.get("val"), torch.Tensor) else False
    is_cheap = is_bounded(node) or node.target in MOVES or node.target is aten.cumsum.default
    return is_whole and (torch.Tag.pointwise in tags or is_cheap or range_of(node) is not None)
