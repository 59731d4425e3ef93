"""A training step of given sizes: one plan, two sessions, one piece of memory between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from campo_onnx.integrations.torch_compile.cut import Cut, cut
from campo_onnx.integrations.torch_compile.flat import Argument, FlatGraph, Given, Made, Tensor
from campo_onnx.integrations.torch_compile.planning import Planned
from campo_onnx.integrations.torch_compile.sessions import address, allocated, open_part
from campo_onnx.runtime.addresses import AddressedSession

_ALIGNMENT_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A kept tensor's place in the memory between the two passes.

    Parameters
    ----------
    name
        The tensor.
    first, nbytes
        Where it begins, and its size.
    """

    name: str
    first: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What autograd keeps from a forward pass to its backward pass.

    Parameters
    ----------
    arguments
        Positions of arguments that the backward pass reads as they are.
    results
        Places of results that it reads.
    """

    arguments: tuple[int, ...]
    results: tuple[int, ...]


class TrainingStep:
    """Forward and backward pass of a joint graph at one set of sizes.

    Parameters
    ----------
    flat
        The joint graph; its results are those of the forward pass, then the gradients.
    planned
        The same as it will run.
    primals
        How many arguments the forward pass has; tangents come after them.
    forward_results
        How many results it has.
    weights
        Positions of arguments that live as long as the model.
    kept
        What autograd keeps; None to find out. A graph of dynamic sizes keeps the same for all sizes.
    """

    def __init__(
        self,
        flat: FlatGraph,
        planned: Planned,
        *,
        primals: int,
        forward_results: int,
        weights: frozenset[int],
        kept: Kept | None = None,
    ) -> None:
        self.flat, self.planned = flat, planned
        self._primals = primals
        self._results = flat.results[:forward_results]
        self._gradients = flat.results[forward_results:]
        self._position = {t.name: p for t, p in zip(flat.inputs, flat.positions, strict=True)}
        self._tensor = {t.name: t for t in (*flat.inputs, *flat.outputs)}
        self._forward_outputs = _made(self._results, flat)
        self._backward_outputs = _made(self._gradients, flat)
        self.cut = self._cut(weights, kept)
        self.kept = kept or self._found_kept()
        self.slots = self._slots()

    def _is_tangent(self, name: str) -> bool:
        return self._primals <= self._position[name] < self.flat.arguments

    def _cut(self, weights: frozenset[int], kept: Kept | None) -> Cut:
        view = self.planned.imported.view
        free = weights if kept is None else frozenset(kept.arguments)
        return cut(
            view,
            forward_outputs=[t.name for t in self._forward_outputs],
            backward_outputs=[t.name for t in self._backward_outputs],
            tangents=[name for name in view.inputs if self._is_tangent(name)],
            input_bytes={
                name: 0.0 if self._position[name] in free else view.tensors[name].nbytes
                for name in view.inputs
            },
        )

    def _found_kept(self) -> Kept:
        positions = [self._position[n] for n in self.cut.kept if n in self._position]
        made = {t.name: i for i, t in enumerate(self.flat.outputs)}
        forward = {t.name for t in self._forward_outputs}
        passed = [g.position for g in self._gradients if isinstance(g, Argument)]
        return Kept(
            arguments=tuple(dict.fromkeys(p for p in (*positions, *passed) if p < self._primals)),
            results=tuple(made[n] for n in self.cut.kept if n in forward),
        )

    def _slots(self) -> tuple[Slot, ...]:
        """Lay out what is kept, apart from what autograd keeps as tensors of their own."""
        own = {n for n, p in self._position.items() if p in self.kept.arguments}
        own |= {self.flat.outputs[place].name for place in self.kept.results}
        slots, first = [], 0
        for name in self.cut.kept:
            if name not in own:
                nbytes = int(self.planned.imported.view.tensors[name].nbytes)
                slots.append(Slot(name=name, first=first, nbytes=nbytes))
                first += -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return tuple(slots)

    @property
    def buffer_bytes(self) -> int:
        """Size of the memory between the two passes."""
        return self.slots[-1].first + self.slots[-1].nbytes if self.slots else 0

    @cached_property
    def _forward(self) -> tuple[AddressedSession | None, list[str], list[str]]:
        imported, device = self.planned.imported, self.flat.device
        slots = [s.name for s in self.slots if s.name not in self._drawn_slots]
        writes = [*(t.name for t in self._forward_outputs), *slots]
        return self._opened(self.cut.forward, writes, device, frozenset(imported.view.inputs))

    @cached_property
    def _backward(self) -> tuple[AddressedSession | None, list[str], list[str]]:
        writes = [t.name for t in self._backward_outputs]
        return self._opened(self.cut.backward, writes, self.flat.device, frozenset(self.cut.kept))

    def _opened(
        self, nodes: frozenset[str], writes: list[str], device: torch.device, outside: frozenset[str]
    ) -> tuple[AddressedSession | None, list[str], list[str]]:
        imported = self.planned.imported
        view = imported.view
        made = {t for n in view.nodes if n.name in nodes for t in n.outputs}
        read = {t for n in view.nodes if n.name in nodes for t in n.inputs} | {
            t for t in writes if t not in made
        }
        tangents = {t for t in view.inputs if self._is_tangent(t)}
        reads = [t for t in view.tensors if t in read and t in outside | tangents and t not in made]
        if not writes:
            return None, reads, writes
        where = {name: self._device_of(name) for name in reads}
        session = open_part(imported, nodes, where, writes, device, as_written=self.planned.is_mixed)
        return session, reads, writes

    def _device_of(self, name: str) -> torch.device:
        placed = {n.name: n for n in self.flat.gm.graph.nodes if n.op == "placeholder"}
        at = {t.name: i for i, t in enumerate(self.flat.inputs)}
        if name not in at:
            return self.flat.device
        device: torch.device = list(placed.values())[at[name]].meta["val"].device
        return device

    @cached_property
    def _drawn_slots(self) -> Mapping[str, int]:
        """Slots that torch draws into: which drawing each is."""
        drawn = {n: p - self.flat.arguments for n, p in self._position.items() if p >= self.flat.arguments}
        return {s.name: drawn[s.name] for s in self.slots if s.name in drawn}

    def forward(self, arguments: Sequence[Any]) -> tuple[list[Any], list[torch.Tensor]]:
        """Run the forward pass.

        Returns
        -------
        results
            What it gives, in the order of the graph.
        kept
            What autograd is to keep, in the order of :attr:`kept`, and the memory in between.
        """
        session, reads, writes = self._forward
        device = self.flat.device
        buffer = torch.empty(self.buffer_bytes, dtype=torch.uint8, device=device)
        given = dict(enumerate(arguments))
        given |= {self.flat.arguments + i: draw() for i, draw in enumerate(self.flat.draws)}
        alive: list[torch.Tensor] = []
        read_at = [self._address_of(name, given, alive) for name in reads]
        base = address(buffer)
        for slot in self.slots:
            if slot.name in self._drawn_slots:
                self._store(slot, given[self._position[slot.name]], buffer)
        made = [allocated(t, device) for t in self._forward_outputs]
        first = {slot.name: slot.first for slot in self.slots}
        written_at = [*map(address, made), *(base + first[n] for n in writes[len(made) :])]
        if session is not None:
            session.run(read_at, written_at)
        outputs = {t.name: x for t, x in zip(self._forward_outputs, made, strict=True)}
        results = [self._result(r, given, outputs) for r in self._results]
        kept = [given[p] for p in self.kept.arguments]
        kept += [outputs[self.flat.outputs[place].name] for place in self.kept.results]
        return results, [*kept, buffer]

    def backward(self, kept: Sequence[torch.Tensor], tangents: Sequence[Any]) -> list[Any]:
        """Run the backward pass.

        Parameters
        ----------
        kept
            As :meth:`forward` gave it.
        tangents
            Gradients of its results.
        """
        session, reads, _ = self._backward
        device = self.flat.device
        *tensors, buffer = kept
        base = address(buffer)
        given: dict[int, Any] = dict(zip(self.kept.arguments, tensors, strict=False))
        given |= {self._primals + i: t for i, t in enumerate(tangents)}
        results = dict(zip(self.kept.results, tensors[len(self.kept.arguments) :], strict=True))
        names = {self.flat.outputs[place].name: t for place, t in results.items()}
        first = {slot.name: slot.first for slot in self.slots}
        alive: list[torch.Tensor] = []
        read_at = []
        for name in reads:
            if name in first:
                read_at.append(base + first[name])
            elif name in names:
                read_at.append(address(names[name]))
            else:
                read_at.append(self._address_of(name, given, alive))
        made = [allocated(t, device) for t in self._backward_outputs]
        if session is not None:
            session.run(read_at, list(map(address, made)))
        outputs = {t.name: x for t, x in zip(self._backward_outputs, made, strict=True)}
        return [self._result(g, given, outputs) for g in self._gradients]

    def _address_of(self, name: str, given: Any, alive: list[torch.Tensor]) -> int:
        stored = self._tensor[name].layout.stored(given[self._position[name]])
        alive.append(stored)  # until the run is over
        return address(stored)

    def _store(self, slot: Slot, drawn: torch.Tensor, buffer: torch.Tensor) -> None:
        tensor = self._tensor[slot.name]
        room = buffer[slot.first : slot.first + slot.nbytes].view(tensor.dtype)
        room.view(tensor.layout.stored_shape).copy_(tensor.layout.stored(drawn))

    def _result(self, result: Any, given: Any, outputs: Mapping[str, torch.Tensor]) -> Any:
        if isinstance(result, Given):
            return result.value
        if isinstance(result, Argument):
            return given[result.position]
        tensor = self.flat.outputs[result.place]
        return tensor.layout.restored(outputs[tensor.name])


def _made(results: Sequence[Any], flat: FlatGraph) -> list[Tensor]:
    places = dict.fromkeys(r.place for r in results if isinstance(r, Made))
    return [flat.outputs[place] for place in places]
