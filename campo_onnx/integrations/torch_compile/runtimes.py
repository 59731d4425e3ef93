"""The runtime of each compiled graph: the one that is named, or the fastest as measured on this machine."""

import logging
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from math import prod
from typing import NamedTuple, Protocol, TypeVar

import onnx
import torch

from campo_onnx.errors import CampoError
from campo_onnx.files.codec import fingerprint
from campo_onnx.integrations.torch_compile.planning import Planned
from campo_onnx.integrations.torch_compile.settings import Settings
from campo_onnx.integrations.torch_compile.warn_once import warn_once
from campo_onnx.ir.sizes.formulas import Sizes
from campo_onnx.ops.precision import Precision
from campo_onnx.planning.kept_plans import identity_of
from campo_onnx.runtime.choice import keep_choice, kept_choice, needs_default, times_us
from campo_onnx.runtime.machine import DEFAULT
from campo_onnx.runtime.registry import AUTO, machine

_LOG = logging.getLogger(__name__)


class Trial(NamedTuple):
    """Time of a graph in a runtime, as it is planned for that."""

    runtime: str
    low: str  # precision of the nodes that the plan lowers: "bf16"; "fp32" where it lowers none
    step_us: float
    sizes: Sizes

    def __str__(self) -> str:
        return f"{self.runtime} in {self.low} {self.step_us:.0f} us"


class Candidate(Protocol):
    """A graph that is planned for a runtime."""

    trials: tuple[Trial, ...]

    @property
    def planned(self) -> Planned:
        """The graph as it will run."""

    def open(self) -> None:
        """Load it."""

    def rehearsal(self) -> Callable[[], None]:
        """Give what runs it once, on memory of its own."""


_LARGER = 1.25
"""Sizes so many times as large as all before, as a product, have a trial of their own."""


def _low_of(planned: Planned) -> str:
    return (planned.plan.low if planned.plan.low_nodes else Precision.FP32).value


C = TypeVar("C", bound=Candidate)


class RuntimeChoice:
    """Chooses a runtime for a graph: at the first sizes, and again at larger ones."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._chosen: dict[Sizes, str] = {}
        self._has_choice = False

    def wants_trial(self, sizes: Sizes) -> bool:
        """Whether sizes are larger than all at which runtimes were tried."""
        return self._has_choice and not self._chosen_at(sizes)

    def candidate(
        self,
        sizes: Sizes | None,
        processor: str,
        make: Callable[[str], C],
        model: Callable[[], onnx.ModelProto],
    ) -> C:
        """Make a graph for the runtime that is to run it.

        CampoError says that no runtime takes it; or that the one that is named does not, under
        ``fallback="error"``. A graph that is made again at other `sizes` gets the runtime that won at the
        next larger ones, and a trial of its own where it is larger than all before: the last batch of an
        epoch must not choose for whole ones. Without `sizes` each graph has a trial. `model` gives the graph
        in FP32, by which the choice of an earlier process is found.
        """
        names = self._settings.runtimes(processor)
        self._has_choice = len(names) > 1
        if sizes is not None and (earlier := self._chosen_at(sizes)):
            names = (earlier,)
        identity = self._identity(names, processor, model()) if len(names) > 1 else ""
        choice = kept_choice(self._settings.folder, identity) if identity else ""
        candidates = self._candidates((choice,) if choice in names else names, make)
        if not candidates:
            candidates = {DEFAULT: make(DEFAULT)}
        if len(candidates) > 1:
            name = self._fastest(candidates, identity, sizes or ())
        else:
            name = next(iter(candidates))
        if sizes is not None:
            self._chosen[sizes] = name
        return candidates[name]

    def _chosen_at(self, sizes: Sizes) -> str:
        """Name the runtime that was chosen at the next larger sizes; empty where these are the largest."""
        larger = [at for at in self._chosen if prod(sizes) <= _LARGER * prod(at)]
        return self._chosen[min(larger, key=prod)] if larger else ""

    def _candidates(self, names: Sequence[str], make: Callable[[str], C]) -> dict[str, C]:
        candidates: dict[str, C] = {}
        is_named = self._settings.runtime != AUTO
        for name in names:
            try:
                candidate = make(name)
                if name != DEFAULT:
                    if not is_named and needs_default(candidate.planned.imported.view):
                        _LOG.debug("%s would count in 32 bits", name)
                        continue
                    candidate.open()  # what a runtime refuses, it refuses now
            except CampoError as error:
                if name == DEFAULT or (is_named and self._settings.fallback == "error"):
                    raise
                _LOG.debug("%s does not run a graph", name, exc_info=error)
                if is_named:
                    warn_once(f"campo-onnx runs a part of the model in {DEFAULT} instead of {name}: {error}")
            else:
                candidates[name] = candidate
        return candidates

    def _fastest(self, candidates: Mapping[str, C], named: str, sizes: Sizes) -> str:
        for candidate in candidates.values():
            candidate.open()
        step_us = times_us({name: candidate.rehearsal() for name, candidate in candidates.items()})
        fastest = min(step_us, key=step_us.__getitem__)
        candidates[fastest].trials = tuple(
            Trial(name, _low_of(candidate.planned), step_us[name], sizes)
            for name, candidate in candidates.items()
        )
        keep_choice(self._settings.folder, named, fastest, step_us)
        return fastest

    def _identity(self, names: Sequence[str], processor: str, model: onnx.ModelProto) -> str:
        """Identify what is measured: the graph, how it is planned for each runtime, and the machine."""
        threads = torch.get_num_threads()
        facts = {
            name: [identity_of(self._settings.options(processor, name)), machine(processor, threads, name)]
            for name in names
        }
        content = model.SerializeToString(deterministic=True)
        return fingerprint({"graph": blake2b(content, digest_size=16).hexdigest(), "asked": facts})
