"""The runtime of each compiled graph: the one that is named, or the fastest as measured on this machine."""

import logging
import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Protocol, TypeVar

import torch

from campo_onnx.codec import fingerprint
from campo_onnx.errors import CampoError
from campo_onnx.integrations.torch_compile.planning import Planned
from campo_onnx.integrations.torch_compile.settings import Settings
from campo_onnx.planning.kept_plans import keep_choice, kept_choice
from campo_onnx.runtime.machine import DEFAULT
from campo_onnx.runtime.registry import machine

_LOG = logging.getLogger(__name__)

_BLOCKS, _STEPS = 3, 4
"""Threads of one runtime spin on for a while after a step: runtimes take turns in blocks, and the first step
of a block does not count."""

_BUDGET_S = 3.0


class Candidate(Protocol):
    """A graph that is planned for a runtime."""

    @property
    def planned(self) -> Planned:
        """The graph as it will run."""
        ...

    def open(self) -> None:
        """Load it."""
        ...

    def rehearsal(self) -> Callable[[], None]:
        """Give what runs it once, on memory of its own."""
        ...


C = TypeVar("C", bound=Candidate)


class RuntimeChoice:
    """Chooses a runtime for each graph, once.

    Parameters
    ----------
    settings
        The user's choice.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._chosen: dict[Hashable, str] = {}

    def made(self, key: Hashable, processor: str, make: Callable[[str], C]) -> C:
        """Make a graph for the runtime that is to run it.

        Parameters
        ----------
        key
            What the graph is known by: made again, it gets the runtime that it had.
        processor
            ``"cpu"`` or ``"cuda"``.
        make
            Plans the graph for a runtime.

        Raises
        ------
        campo_onnx.errors.CampoError
            If no runtime takes it; or the one that is named does not, under ``fallback="error"``.
        """
        names = self._settings.runtimes(processor)
        if key in self._chosen:
            names = (self._chosen[key],)
        candidates = self._candidates(names, make)
        if not candidates:
            candidates = {DEFAULT: make(DEFAULT)}
        name = next(iter(candidates)) if len(candidates) == 1 else self._fastest(candidates)
        if key is not None:
            self._chosen[key] = name
        return candidates[name]

    def _candidates(self, names: Sequence[str], make: Callable[[str], C]) -> dict[str, C]:
        candidates: dict[str, C] = {}
        for name in names:
            try:
                candidate = make(name)
                if name != DEFAULT:
                    candidate.open()  # what a runtime refuses, it refuses now
            except CampoError as error:
                if name == DEFAULT or (len(names) == 1 and self._settings.fallback == "error"):
                    raise
                _LOG.debug("%s does not run a graph", name, exc_info=error)
                if len(names) == 1:
                    _warn_once(f"campo-onnx runs a part of the model in {DEFAULT} instead of {name}: {error}")
            else:
                candidates[name] = candidate
        return candidates

    def _fastest(self, candidates: Mapping[str, C]) -> str:
        folder = None if self._settings.plans is None else Path(self._settings.plans)
        key = _identity(candidates)
        choice = kept_choice(folder, key)
        if choice in candidates:
            return choice
        for candidate in candidates.values():
            candidate.open()
        step_us = times_us({name: candidate.rehearsal() for name, candidate in candidates.items()})
        fastest = min(step_us, key=step_us.__getitem__)
        _LOG.info("a graph runs in %s: %s us", fastest, step_us)
        keep_choice(folder, key, fastest, step_us)
        return fastest


def _identity(candidates: Mapping[str, Candidate]) -> str:
    """Identify what a measurement is of: the graphs, the machine, and the runtimes on it."""
    threads = torch.get_num_threads()
    return fingerprint(
        {
            name: [candidate.planned.imported.digest, machine("cpu", threads, name)]
            for name, candidate in candidates.items()
        }
    )


def times_us(runs: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Time runs in turns.

    Returns
    -------
    dict of str to float
        The median of each, in microseconds.
    """
    for run in runs.values():
        run()
    samples: dict[str, list[float]] = {name: [] for name in runs}
    began = time.perf_counter()
    for _ in range(_BLOCKS):
        for name, run in runs.items():
            for step in range(_STEPS):
                before = time.perf_counter()
                run()
                if step:
                    samples[name].append(1e6 * (time.perf_counter() - before))
        if time.perf_counter() - began > _BUDGET_S:
            break
    return {name: median(taken) for name, taken in samples.items()}


_warned: set[str] = set()


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)
