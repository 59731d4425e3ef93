"""The pass that Inductor calls with the joint graph of a training step."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

from campo_onnx.errors import CampoError, is_foreign
from campo_onnx.files.codec import fingerprint
from campo_onnx.integrations.inductor.choice import Decision
from campo_onnx.integrations.inductor.library import is_candidate, tensors_of
from campo_onnx.integrations.inductor.rewriting import execute
from campo_onnx.integrations.inductor.safety import allowed
from campo_onnx.integrations.inductor.stored import choices_of
from campo_onnx.integrations.inductor.times import Clock
from campo_onnx.integrations.torch_compile.flat import module_path
from campo_onnx.integrations.torch_compile.warn_once import warn_once
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import OpLists
from campo_onnx.optimize.name_patterns import matching, pattern_of
from campo_onnx.version import VERSION, source_digest

_LOG = logging.getLogger(__name__)

_LOW = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}
_MIN_GAIN = 0.01
"""Share of the predicted FP32 time that a plan must save: no cost is known better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGraph:
    """A plan for one graph."""

    kernels: int  # library kernels of the graph
    low: tuple[str, ...] = ()  # names of those that compute low
    stored_low: tuple[str, ...] = ()  # names of values that are stored low alone
    untranslated: tuple[str, ...] = ()  # operations whose safety nobody could tell, and which stay FP32
    decision: Decision | None = None  # None where nothing was to be decided
    unchanged: str = ""  # why the graph is as it was; empty if it was changed

    def __str__(self) -> str:
        if self.unchanged:
            return f"{self.kernels} library kernels, as they were: {self.unchanged}"
        assert self.decision is not None
        return (
            f"{len(self.low)} of {self.kernels} library kernels and {len(self.stored_low)} stored values are "
            f"low; kernels and what they share predicted {self.decision.fp32_us:.0f} us -> "
            f"{self.decision.predicted_us:.0f} us, and no plan is below {self.decision.lower_bound_us:.0f} us"
        )


class PrecisionPass(CustomGraphPass):
    """Plan the precision of each joint graph, and write the plan into it.

    `planned` has what was decided for each graph in this process; a graph that torch takes from its own cache
    was planned by an earlier one.
    """

    def __init__(
        self,
        low: Precision,
        lists: OpLists,
        keep_fp32: Sequence[str],
        clock: Clock,
        *,
        min_gain: float = _MIN_GAIN,
    ) -> None:
        self._low, self._lists, self._clock, self._min_gain = low, lists, clock, min_gain
        self._keep_fp32 = tuple(keep_fp32)
        self._patterns = [pattern_of(text) for text in keep_fp32]
        self.planned: list[PlannedGraph] = []

    def uuid(self) -> str:
        """Identify everything beside the graph that decides a plan: Inductor files compiled graphs under it.

        Times of the same kernels on the same machine are taken to be the same.
        """
        return fingerprint(
            {
                "rules": [VERSION, source_digest()],
                "asked": [self._low, self._lists, self._keep_fp32, self._min_gain],
                "clock": self._clock.identity,
            }
        )

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Plan a graph and change it; one without a backward pass is left as it is."""
        if not any(n.op == "placeholder" and n.name.startswith("tangents") for n in graph.nodes):
            return
        try:
            planned = self._planned(graph)
        except Exception as error:  # whatever torch compiles without us, it compiles with us
            if is_foreign(error):
                raise
            message = str(error) if isinstance(error, CampoError) else f"{type(error).__name__}: {error}"
            _LOG.debug("a graph cannot be planned", exc_info=error)
            warn_once(f"campo-onnx leaves a graph in FP32, as it cannot be planned: {message}")
            planned = PlannedGraph(kernels=len(_kernels(graph)), unchanged=message)
        if not planned.unchanged:
            nodes = {node.name: node for node in graph.nodes}
            low, stored = (map(nodes.__getitem__, names) for names in (planned.low, planned.stored_low))
            execute(graph, {*low}, {*stored}, _LOW[self._low])
        self.planned.append(planned)

    def _planned(self, graph: torch.fx.Graph) -> PlannedGraph:
        kernels = _kernels(graph)
        if any(t.dtype in _LOW.values() for node in graph.nodes for t in tensors_of(node)):
            why = "a part of it computes in a low type already, as under autocast"
            return PlannedGraph(kernels=len(kernels), unchanged=why)
        if not kernels:
            return PlannedGraph(kernels=0, unchanged="there are none")
        may_be = allowed(graph, self._lists, self._low)
        free = may_be.kernels - self._kept(graph)
        # Imported when the compiler runs, which has loaded it by then: it takes as long as torch itself.
        from torch._inductor.graph import GraphLowering

        gm: Any = graph.owning_module
        channels_last = GraphLowering.decide_layout_opt(gm, is_inference=False)
        with self._clock.opened() as times:
            choices = choices_of(
                graph, free, may_be.values, _LOW[self._low], times, channels_last=channels_last
            )
        decision = choices.decide()
        saved_us = decision.fp32_us - decision.predicted_us
        is_worth_it = bool(decision.low) and saved_us > self._min_gain * decision.fp32_us
        chosen = [node for node in graph.nodes if is_worth_it and node.name in decision.low]
        return PlannedGraph(
            kernels=len(kernels),
            low=tuple(n.name for n in chosen if n in free),
            stored_low=tuple(n.name for n in chosen if n not in free),
            untranslated=may_be.untranslated,
            decision=decision,
            unchanged="" if is_worth_it else "no plan is predicted to be faster",
        )

    def _kept(self, graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
        """Give the nodes that the user wants in FP32."""
        if not self._patterns:
            return frozenset()
        names = {node: (node.name, str(node.target), *_modules(node)) for node in graph.nodes}
        matched = matching(self._patterns, dict.fromkeys(chain.from_iterable(names.values())))
        return frozenset(node for node, own in names.items() if not matched.isdisjoint(own))


def _kernels(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if is_candidate(node)]


def _modules(node: torch.fx.Node) -> Iterable[str]:
    """Give the paths of the modules that a node, or what it is the gradient of, is in."""
    stack = node.meta.get("fwd_nn_module_stack") or node.meta.get("nn_module_stack") or {}
    return map(module_path, stack.values())
