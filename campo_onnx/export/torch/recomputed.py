"""Dropout that activation checkpointing runs again in the backward pass has its first mask."""

from collections.abc import Hashable

import torch

from campo_onnx.errors import UnsupportedModelError


class Masks:
    """Draws masks, and knows those of checkpointed parts by where they were drawn."""

    def __init__(self) -> None:
        self._drawn: dict[Hashable, torch.Tensor | None] = {}
        self.is_backward = False

    def dropped(self, x: torch.Tensor, p: float, place: Hashable) -> torch.Tensor:
        """Drop elements of `x`.

        `place` tells this dropout from others. One that runs again, while it is not clear which mask it had,
        is an UnsupportedModelError.
        """
        if not self.is_backward and not _is_checkpointed():
            return torch.native_dropout(x, p, train=True)[0]
        place = (place, tuple(x.shape), p)
        if not self.is_backward:
            mask = torch.native_dropout(torch.ones_like(x).detach(), p, train=True)[0]
            self._drawn[place] = None if place in self._drawn else mask
            return x * mask
        drawn = self._drawn.get(place)
        if drawn is None:
            raise UnsupportedModelError(
                "a part with dropout is run several times under activation checkpointing",
                why="there is no way to tell which mask it had when it is run again",
                remedy="Turn checkpointing off there, or set the dropout in it to 0.",
            )
        return x * drawn


def _is_checkpointed() -> bool:
    """Whether something other than autograd keeps what the backward pass reads, as checkpointing does."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
