"""Numbers that a step reads from its batch, taken to be those of the example: checked in every step.

A length, a flag, how much a mask selects: what ``.item()``, ``if tensor`` and ``nonzero`` give decides which
operations there are. The step runs once on the example to read them. Where tracing meets them again, the
graph goes the same way, and has an output for each that says whether the batch would have.

All of them end in a few operations, whether Python, torch's C++ or the backward pass calls them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.torch.decompositions import bincount
from campo_onnx.export.torch.origin import current_origin

aten = torch.ops.aten

_MASKS = (torch.bool, torch.uint8)


class Numbers(TorchDispatchMode):
    """Numbers that a step reads of its tensors, recorded or answered while the mode is active.

    `recorded` are those that it read of the example, by place in the user's code, in order; None while it
    reads them.
    """

    def __init__(self, recorded: Mapping[str, Sequence[Any]] | None = None) -> None:
        super().__init__()
        self.read: dict[str, list[Any]] = {}
        self.holds: dict[str, torch.Tensor] = {}
        self._recorded = recorded

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _INDEXED:
            args = (args[0], self._without_masks(args[1]), *args[2:])
        elif func in _ANSWERS:
            return _ANSWERS[func](self, *args, **kwargs)
        return func(*args, **kwargs)

    def _number(self, x: torch.Tensor) -> Any:
        value = self._next(lambda: aten._local_scalar_dense.default(x))
        if isinstance(value, bool):
            self._check((x != 0).all() == value, f"decides otherwise than {value}")
        else:
            self._check((x == value).all(), f"reads another number than {value}")
        return value

    def _equal(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        value = self._next(lambda: aten.equal.default(x, y))
        if x.shape == y.shape:
            self._check((x == y).all() == value, f"compares otherwise than {value}")
        return value

    def _rows(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Select elements by a mask that is true as often as in the example."""
        x, mask = torch.broadcast_tensors(x, mask)
        return x.flatten().index_select(0, self._in_front(mask))

    def _indices(self, x: torch.Tensor) -> torch.Tensor:
        flat = self._in_front(x != 0)
        columns = []
        for size in reversed(x.shape):
            columns.append(flat % size)
            flat = torch.div(flat, size, rounding_mode="floor")
        return torch.stack(columns[::-1], 1) if columns else flat.new_zeros((len(flat), 0))

    def _without_masks(self, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Replace masks by the places at which they are true."""
        plain: list[torch.Tensor | None] = []
        for index in indices:
            is_mask = index is not None and index.dtype in _MASKS
            plain += self._indices(index).unbind(1) if is_mask else [index]
        return plain

    def _unique(
        self, x: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ordered = x.flatten().sort()[0]
        starts = torch.cat([torch.ones_like(ordered[:1], dtype=torch.bool), ordered[1:] != ordered[:-1]])
        values = ordered.index_select(0, self._in_front(starts))
        is_value = x.unsqueeze(-1) == values
        return values, (is_value * torch.arange(len(values))).sum(-1), is_value.flatten(0, -2).sum(0)

    def _counts(
        self, x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
    ) -> torch.Tensor:
        return bincount(x, weights, self._counted((x.max() + 1).clamp_min(minlength)))

    def _repeated(self, repeats: torch.Tensor, output_size: int | None = None) -> torch.Tensor:
        ends = repeats.cumsum(0)
        count = self._counted(repeats.sum()) if output_size is None else output_size
        if output_size is not None:
            self._check(ends[-1] == count, f"repeats to another length than {count}")
        return (torch.arange(count).unsqueeze(1) >= ends).sum(1).clamp_max(len(repeats) - 1)

    def _in_front(self, mask: torch.Tensor) -> torch.Tensor:
        """Give the places at which a mask is true, in order: as many as in the example."""
        hits, count = mask.flatten(), self._counted(mask.sum())
        place = torch.where(hits, hits.long().cumsum(0) - 1, count).clamp_max(count)  # the last is for others
        places = torch.arange(len(hits), device=mask.device)
        empty = torch.zeros(count + 1, dtype=torch.int64, device=mask.device)
        return empty.scatter(0, place, places)[:count]

    def _counted(self, number: torch.Tensor) -> int:
        count = int(self._next(lambda: aten._local_scalar_dense.default(number)))
        self._check(number == count, f"selects another number of elements than {count}")
        return count

    def _next(self, read: Callable[[], Any]) -> Any:
        """Read a number of the example, or give the one that was read there."""
        place = current_origin().place
        numbers = self.read.setdefault(place, [])
        if self._recorded is None:
            numbers.append(read())
        elif len(numbers) == len(self._recorded.get(place, ())):
            raise UnsupportedModelError(
                f"{place} reads a number that the step did not read when it ran on the example",
                remedy="Compute it outside of the step, and give it as an argument.",
            )
        else:
            numbers.append(self._recorded[place][len(numbers)])
        return numbers[-1]

    def _check(self, holds: torch.Tensor, text: str) -> None:
        text = f"{current_origin().place} {text}"
        before = self.holds.get(text)
        self.holds[text] = holds if before is None else before & holds


_INDEXED = frozenset(
    {
        aten.index.Tensor, aten.index_put.default, aten.index_put_.default,
        aten._index_put_impl_.default, aten._unsafe_index.Tensor, aten._unsafe_index_put.default,
    }
)  # fmt: skip
_ANSWERS: Mapping[Any, Callable[..., Any]] = {
    aten._local_scalar_dense.default: Numbers._number,
    aten.bincount.default: Numbers._counts,
    aten.equal.default: Numbers._equal,
    aten.masked_select.default: Numbers._rows,
    aten.nonzero.default: Numbers._indices,
    aten.repeat_interleave.Tensor: Numbers._repeated,
    aten._unique2.default: Numbers._unique,
}
