"""Memory handed from a forward pass to its backward pass.

All that is computed for the backward pass lies in one piece of memory, which autograd keeps as one
tensor of bytes: sessions write to and read from slots in it, in whatever precision was planned.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

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
