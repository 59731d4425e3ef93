"""Numbers that a step reads from its batch, taken to be those of the example: checked in every step.

A length, a flag, how much a mask selects: what ``.item()``, ``if tensor`` and ``nonzero`` give decides which
operations there are. The step runs once on the example to read them. Where tracing meets them again, the
graph goes the same way, and has an output for each that says whether the batch would have.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from campo_onnx.errors import UnsupportedModelError

_NUMBERS = frozenset(
    {
        torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__,
        torch.Tensor.__index__, torch.Tensor.is_nonzero, torch.is_nonzero,
    }
)  # fmt: skip
_PLACES = frozenset({torch.nonzero, torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere})
_SELECTED = frozenset({torch.masked_select, torch.Tensor.masked_select})
_INDEXED = torch.Tensor.__getitem__
_EQUAL = frozenset({torch.equal, torch.Tensor.equal})


class Numbers:
    """Numbers that a step reads of its tensors.

    Parameters
    ----------
    recorded
        What it read when it ran on the example, in order; None while it runs on it.
    """

    def __init__(self, recorded: Sequence[Any] | None = None) -> None:
        self.read: list[Any] = []
        self.holds: dict[str, torch.Tensor] = {}
        self._recorded = recorded

    def answer(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Any, place: str) -> Any:
        """Call a function that looks at data; NotImplemented for any other function."""
        if func is torch.Tensor.tolist:
            return self._list(args[0], place)
        if func in _NUMBERS or func in _EQUAL:
            return self._number(func, args, kwargs, place)
        if (func in _PLACES and not kwargs and len(args) == 1) or (func is torch.where and len(args) == 1):
            indices = self._indices(args[0], place)
            if func is torch.where:
                return tuple(indices.unbind(1))
            return indices
        if func in _SELECTED:
            x, mask = torch.broadcast_tensors(*args)
            return self._rows(x, mask, place)
        if func is _INDEXED and isinstance(args[1], torch.Tensor) and args[1].dtype == torch.bool:
            return self._rows(args[0], args[1], place)
        return NotImplemented

    def _number(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Any, place: str) -> Any:
        if self._recorded is None:
            self.read.append(func(*args, **kwargs))
            return self.read[-1]
        value = self._next(place)
        if func in _EQUAL:
            same = args[0].shape == args[1].shape
            now = (args[0] == args[1]).all() if same else torch.zeros((), dtype=torch.bool)
            self._check(now == value, f"{place} compares otherwise than {value}")
            return value
        x = args[0]
        if isinstance(value, bool):
            self._check((x != 0).all() == value, f"{place} decides otherwise than {value}")
        else:
            self._check((x == value).all(), f"{place} reads another number than {value}")
        return value

    def _list(self, x: torch.Tensor, place: str) -> Any:
        """Read one number after the other, as fake tensors do."""
        if x.dim():
            return [self._list(part, place) for part in x.unbind()]
        return self._number(torch.Tensor.item, (x,), {}, place)

    def _rows(self, x: torch.Tensor, mask: torch.Tensor, place: str) -> torch.Tensor:
        """Select rows by a mask that is true as often as in the example."""
        count = self._count(mask, place)
        rows = x.flatten(0, mask.dim() - 1) if mask.dim() else x.unsqueeze(0)
        return rows.index_select(0, _in_front(mask, count))

    def _indices(self, x: torch.Tensor, place: str) -> torch.Tensor:
        mask = x != 0
        flat = _in_front(mask, self._count(mask, place))
        columns = []
        for size in reversed(mask.shape):
            columns.append(flat % size)
            flat = flat // size
        return torch.stack(columns[::-1], 1) if columns else flat.new_zeros((len(flat), 0))

    def _count(self, mask: torch.Tensor, place: str) -> int:
        if self._recorded is None:
            self.read.append(int(mask.sum()))
            return int(self.read[-1])
        count = int(self._next(place))
        self._check(mask.sum() == count, f"{place} selects another number of elements than {count}")
        return count

    def _next(self, place: str) -> Any:
        assert self._recorded is not None
        if len(self.read) == len(self._recorded):
            raise UnsupportedModelError(
                f"{place} reads a number that the step did not read when it ran on the example",
                remedy="Compute it outside of the step, and give it as an argument.",
            )
        self.read.append(self._recorded[len(self.read)])
        return self.read[-1]

    def _check(self, holds: torch.Tensor, text: str) -> None:
        before = self.holds.get(text)
        self.holds[text] = holds if before is None else before & holds


def _in_front(mask: torch.Tensor, count: int) -> torch.Tensor:
    """Give the places at which a mask is true, in order: `count` of them."""
    hits = mask.flatten()
    place = torch.where(hits, hits.long().cumsum(0) - 1, count).clamp_max(count)  # the last is for others
    places = torch.arange(len(hits), device=mask.device)
    return torch.zeros(count + 1, dtype=torch.int64, device=mask.device).scatter(0, place, places)[:count]
