"""Modules of a graph as a tree: what the precision map opens downwards."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

_MOST_NODES = 200  # directly in one module; more are divided into sections, in the order of the graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One module, or a section of one that has too many nodes to look at."""

    name: str  # its own part of the path
    parent: int  # index of the module it is in; -1 for the whole graph
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTree:
    """Module of every node."""

    modules: tuple[Module, ...]  # each after its parent; the first is the whole graph
    module_of: tuple[int, ...]  # index of the module that each node is in


def module_tree(scopes: Sequence[tuple[str, ...]], kinds: Sequence[str] = ()) -> ModuleTree:
    """Find the modules of a graph.

    `scopes` are the modules that each node is in, as :func:`campo_onnx.ir.origin.scope_in` gives them, in the
    order of the graph; `kinds` the classes of these modules, ``""``, or nothing at all, where they are
    unknown.

    A module that holds more than 200 nodes itself is divided into sections of equal size: graphs whose
    names tell of no modules can be opened as well.
    """
    modules = [Module(name="", parent=-1)]
    index_of: dict[tuple[str, ...], int] = {(): 0}
    module_of: list[int] = []
    for scope in scopes:
        for depth in range(1, len(scope) + 1):
            path = scope[:depth]
            if path not in index_of:
                index_of[path] = len(modules)
                modules.append(Module(name=path[-1], parent=index_of[path[:-1]]))
        module_of.append(index_of[scope])
    for module, kind in zip(module_of, kinds, strict=False):
        if kind and module and not modules[module].kind:
            modules[module] = replace(modules[module], kind=kind)
    return _divided(modules, module_of)


def _divided(modules: list[Module], module_of: list[int]) -> ModuleTree:
    members: dict[int, list[int]] = {}
    for node, module in enumerate(module_of):
        members.setdefault(module, []).append(node)
    for module, inside in members.items():
        if len(inside) <= _MOST_NODES:
            continue
        length = math.isqrt(len(inside) - 1) + 1
        for start in range(0, len(inside), length):
            section = inside[start : start + length]
            for node in section:
                module_of[node] = len(modules)
            modules.append(Module(name=f"{section[0] + 1} to {section[-1] + 1}", parent=module))
    return ModuleTree(modules=tuple(modules), module_of=tuple(module_of))
