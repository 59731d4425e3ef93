"""A training step of given sizes: one plan, two programs, one piece of memory between them.

All that is computed for the backward pass lies in that memory, which autograd keeps as one tensor of bytes:
sessions write to and read from slots in it, in whatever precision was planned.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from campo_onnx.integrations.torch_compile.checks import raise_failed
from campo_onnx.integrations.torch_compile.cut import Cut, cut
from campo_onnx.integrations.torch_compile.flat import Argument, Interface, Output, Result, Tensor, result_of
from campo_onnx.integrations.torch_compile.planning import Planned
from campo_onnx.integrations.torch_compile.programs import address, allocated, open_part, rehearsed
from campo_onnx.integrations.torch_compile.runtimes import Trial
from campo_onnx.runtime.api import AddressedProgram

_ALIGNMENT_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A tensor's place in the memory between the two passes."""

    name: str
    first: int
    nbytes: int

    def room(self, buffer: torch.Tensor, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """Give the slot as a tensor."""
        return buffer[self.first : self.first + self.nbytes].view(dtype).view(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Tensors that autograd keeps as they are, beside that memory; the same for all sizes of a graph."""

    arguments: tuple[int, ...]  # positions of arguments that the backward pass reads
    results: tuple[int, ...]  # places of results that it reads


def slots_of(sizes: Mapping[str, int], own: Collection[str]) -> dict[str, Slot]:
    """Lay tensors out in one piece of memory."""
    slots: dict[str, Slot] = {}
    first = 0
    for name, nbytes in sizes.items():
        if name not in own:
            slots[name] = Slot(name=name, first=first, nbytes=nbytes)
            first += -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return slots


def total_bytes(slots: Mapping[str, Slot]) -> int:
    """Size of the memory that holds all slots."""
    return max((slot.first + slot.nbytes for slot in slots.values()), default=0)


class _Half(NamedTuple):
    """One pass: its program, and what that reads and writes, in order; None where there is nothing to run."""

    program: AddressedProgram | None
    reads: Sequence[str]
    writes: Sequence[str]


class TrainingStep:
    """Forward and backward pass of a joint graph at one set of sizes.

    Results of the joint graph are those of the forward pass, then the gradients. `primals` counts the
    arguments of the forward pass; tangents come after them.
    """

    def __init__(
        self,
        flat: Interface,
        planned: Planned,
        *,
        primals: int,
        forward_results: int,
        weights: frozenset[int],
        saved: Saved | None = None,
        parts: Cut | None = None,
    ) -> None:
        self.flat, self.planned = flat, planned
        self.trials: tuple[Trial, ...] = ()
        self._primals = primals
        self._results = flat.results[:forward_results]
        self._gradients = flat.results[forward_results:]
        self._position = {t.name: p for t, p in zip(flat.inputs, flat.positions, strict=True)}
        self._tensor = {t.name: t for t in (*flat.inputs, *flat.outputs)}
        self._checked = [check.result for check in flat.checks]
        self._written = _made([*self._results, *self._checked], flat)
        self._computed = _made(self._gradients, flat)
        self.cut = parts or self._cut(weights if saved is None else frozenset(saved.arguments))
        self.kept = saved or self._saved()
        own = {n for n, p in self._position.items() if p in self.kept.arguments}
        own |= {flat.outputs[place].name for place in self.kept.results}
        self.slots = slots_of({n: planned.nbytes(n) for n in self.cut.kept}, own)
        self.buffer_bytes = total_bytes(self.slots)

    def _cut(self, free: frozenset[int]) -> Cut:
        view = self.planned.imported.view
        return cut(
            view,
            forward_outputs=[t.name for t in self._written],
            backward_outputs=[t.name for t in self._computed],
            tangents=[n for n in view.inputs if self._primals <= self._position[n] < self.flat.arguments],
            input_bytes={
                name: 0.0 if self._position[name] in free else self.planned.nbytes(name)
                for name in view.inputs
            },
        )

    def _saved(self) -> Saved:
        positions = [self._position[n] for n in self.cut.kept if n in self._position]
        positions += [g.position for g in self._gradients if isinstance(g, Argument)]
        place = {t.name: i for i, t in enumerate(self.flat.outputs)}
        written = {t.name for t in _made(self._results, self.flat)}
        return Saved(
            arguments=tuple(dict.fromkeys(p for p in positions if p < self._primals)),
            results=tuple(place[n] for n in self.cut.kept if n in written),
        )

    @cached_property
    def _drawn(self) -> tuple[str, ...]:
        """Random inputs, in order; "" where the graph does not read it."""
        first = self.flat.arguments
        by_place = {p - first: n for n, p in self._position.items() if p >= first}
        return tuple(by_place.get(i, "") for i in range(len(self.flat.draws)))

    @cached_property
    def _slots_written(self) -> tuple[str, ...]:
        """Slots that the forward session fills; masks and the like are drawn there."""
        return tuple(name for name in self.slots if name not in self._drawn)

    @cached_property
    def _forward(self) -> _Half:
        writes = [*(t.name for t in self._written), *self._slots_written]
        return self._opened(self.cut.forward, writes)

    @cached_property
    def _backward(self) -> _Half:
        return self._opened(self.cut.backward, [t.name for t in self._computed])

    def open(self) -> None:
        """Load both sessions, which is done at the first run otherwise."""
        assert self._forward is not None
        assert self._backward is not None

    def _opened(self, nodes: frozenset[str], writes: Sequence[str]) -> _Half:
        imported, device = self.planned.imported, self.flat.device
        results = {t for name in nodes for t in imported.view.node[name].outputs}
        read = {t for name in nodes for t in imported.view.node[name].inputs} | set(writes)
        outside = {*imported.view.inputs, *self.cut.kept} & read - results
        own = {tensor.name: tensor.device for tensor in self.flat.inputs}
        reads = {t: own.get(t, device) for t in imported.view.tensors if t in outside}
        if not writes:
            return _Half(None, (), ())
        program = open_part(self.planned, nodes, reads, writes, device)
        return _Half(program, tuple(reads), tuple(writes))

    def rehearsal(self) -> Callable[[], None]:
        """Give what runs both passes once, on memory of their own."""
        halves = [rehearsed(self.planned, *half) for half in (self._forward, self._backward)]

        def run() -> None:
            for half in halves:
                half()

        return run

    def forward(self, arguments: Sequence[Any]) -> tuple[list[Any], list[torch.Tensor]]:
        """Run the forward pass.

        Results are in the order of the graph. Autograd is to keep what :attr:`kept` says, then the memory in
        between.
        """
        half, device = self._forward, self.flat.device
        buffer = torch.empty(self.buffer_bytes, dtype=torch.uint8, device=device)
        by_position = dict(enumerate(arguments))
        for i, name in enumerate(self._drawn):
            by_position[self.flat.arguments + i] = self.flat.draws[i](self._room(name, buffer))
        self.flat.indices.check(by_position)
        alive: list[torch.Tensor] = []
        read_at = [self._address_of(name, by_position, alive) for name in half.reads]
        written = [allocated(t, device) for t in self._written]
        base = address(buffer)
        if half.program is not None:
            slots = (base + self.slots[name].first for name in self._slots_written)
            half.program.run(read_at, [*map(address, written), *slots])
        outputs = {t.name: x for t, x in zip(self._written, written, strict=True)}
        raise_failed(self.flat.checks, lambda result: self._results_of([result], by_position, outputs)[0])
        saved = [by_position[p] for p in self.kept.arguments]
        saved += [outputs[self.flat.outputs[place].name] for place in self.kept.results]
        return self._results_of(self._results, by_position, outputs), [*saved, buffer]

    def backward(self, saved: Sequence[torch.Tensor], tangents: Sequence[Any]) -> list[Any]:
        """Run the backward pass."""
        half = self._backward
        *tensors, buffer = saved
        arguments = len(self.kept.arguments)
        by_position = dict(zip(self.kept.arguments, tensors[:arguments], strict=True))
        by_position |= {self._primals + i: tangent for i, tangent in enumerate(tangents)}
        base = address(buffer)
        addresses = {name: base + slot.first for name, slot in self.slots.items()}
        for place, tensor in zip(self.kept.results, tensors[arguments:], strict=True):
            addresses[self.flat.outputs[place].name] = address(tensor)
        alive: list[torch.Tensor] = []
        read_at = [addresses.get(name) or self._address_of(name, by_position, alive) for name in half.reads]
        written = [allocated(t, self.flat.device) for t in self._computed]
        if half.program is not None:
            half.program.run(read_at, [address(tensor) for tensor in written])
        outputs = {t.name: x for t, x in zip(self._computed, written, strict=True)}
        return self._results_of(self._gradients, by_position, outputs)

    def _room(self, name: str, buffer: torch.Tensor) -> torch.Tensor | None:
        """Give the slot that something is drawn into, lying as it would elsewhere; None if it has none."""
        if name not in self.slots:
            return None
        dtype, layout = self._tensor[name].dtype, self._tensor[name].layout
        return layout.restored(self.slots[name].room(buffer, dtype, layout.stored_shape))

    def _address_of(self, name: str, by_position: Mapping[int, Any], alive: list[torch.Tensor]) -> int:
        stored = self._tensor[name].layout.stored(by_position[self._position[name]])
        alive.append(stored)  # until the run is over
        return address(stored)

    def _results_of(
        self, results: Sequence[Result], by_position: Mapping[int, Any], outputs: Mapping[str, torch.Tensor]
    ) -> list[Any]:
        allocated_at = {
            i: t.layout.restored(outputs[t.name])
            for i, t in enumerate(self.flat.outputs)
            if t.name in outputs
        }
        return [result_of(result, by_position, allocated_at) for result in results]


def _made(results: Sequence[Result], flat: Interface) -> list[Tensor]:
    places = dict.fromkeys(r.place for r in results if isinstance(r, Output))
    return [flat.outputs[place] for place in places]
