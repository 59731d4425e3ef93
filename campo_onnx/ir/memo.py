"""Answers about a graph, remembered for as long as the graph lives."""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from campo_onnx.ops.registry import current

Graph = TypeVar("Graph")
Answer = TypeVar("Answer")
Others = ParamSpec("Others")


def remembered(
    function: Callable[Concatenate[Graph, Others], Answer],
) -> Callable[Concatenate[Graph, Others], Answer]:
    """Let a pure function of a graph compute each answer once.

    The graph, its first argument, is an immutable object such as a view; the others must be hashable. The
    answer depends on the operators that are registered, and must not refer to the graph.
    """
    answers: dict[tuple[object, ...], tuple[object, Answer]] = {}

    @wraps(function)
    def asked_once(graph: Graph, /, *others: Others.args, **named: Others.kwargs) -> Answer:
        registry = current()
        key = (id(graph), id(registry), *others, *sorted(named.items()))
        if key not in answers:
            answers[key] = registry, function(graph, *others, **named)  # which keeps the registry's id
            weakref.finalize(graph, answers.pop, key, None).atexit = False
        return answers[key][1]

    return asked_once
