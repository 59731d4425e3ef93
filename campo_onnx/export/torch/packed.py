"""Recurrent layers on packed sequences, and with dropout between them.

How many rows a packed sequence has depends on its lengths, and sizes in a graph cannot depend on data. So
it stays padded here, and behind a sequence's end the state of a layer stays as it was. Recurrent layers and
``pad_packed_sequence`` take that; anything else would see the padding and is refused.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.nn.functional as F

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.torch.origin import place_of_frame

_REMEDY = (
    "Unpack first, pad_packed_sequence(y, total_length=...), and mask what is behind the end of a sequence."
)


class _Longest(int):
    """The padded length, where that of the longest sequence is asked for."""


class _Part:
    """Stands in for a tensor of a PackedSequence, and answers what recurrent layers ask."""

    def __init__(self, rows: torch.Tensor, lengths: torch.Tensor) -> None:
        self.rows, self.lengths = rows, lengths

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(f"reads {name!r} of a packed sequence")

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        override = _KNOWN.get(func)
        if override is None:
            _refuse(f"calls {getattr(func, '__name__', func)} on a packed sequence")
        return override(*args, **(kwargs or {}))


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        _refuse(f"computes with a packed sequence ({name.strip('_')})")

    return refuse


# Operators are looked up in the class, where no other name is asked for.
for _operator in ("add", "sub", "mul", "truediv", "matmul", "pow", "floordiv", "mod"):
    for _name in (f"__{_operator}__", f"__r{_operator}__"):
        setattr(_Part, _name, _refused(_name))
for _name in ("__getitem__", "__len__", "__iter__", "__neg__", "__gt__", "__lt__", "__ge__", "__le__"):
    setattr(_Part, _name, _refused(_name))


class Rows(_Part):
    """The elements, padded: (positions, batch, ...)."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the elements."""
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        """Their device."""
        return self.rows.device

    def dim(self) -> int:
        """Count the axes of a packed tensor."""
        return self.rows.dim() - 1

    def size(self, axis: int) -> int:
        """Give the size of an axis that does not depend on lengths."""
        if axis % self.dim() == 0:
            _refuse("reads how many rows a packed sequence has")
        return self.rows.size(axis % self.dim() + 1)


class Sizes(_Part):
    """Number of sequences that reach each position."""

    device = torch.device("cpu")

    def __getitem__(self, position: Any) -> int:
        if position != 0:
            _refuse("reads how many sequences are left at a position")
        return self.rows.size(1)

    def size(self, axis: int = 0) -> int:
        """Give the length of the longest sequence, which is not known."""
        return _Longest(self.rows.size(0))


def _refuse(what: str) -> NoReturn:
    frame: FrameType | None = sys._getframe(1)
    place = ""
    while frame is not None and not place:
        place, frame = place_of_frame(frame), frame.f_back
    raise UnsupportedModelError(
        f"{place or 'the module'} {what}",
        why="that depends on the lengths, and sizes in a graph cannot depend on data",
        remedy=_REMEDY,
    )


def pack(input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[Rows, Sizes]:
    """Stand in for ``torch._VF._pack_padded_sequence``."""
    rows = input.transpose(0, 1) if batch_first else input
    lengths = lengths.to(rows.device)
    return Rows(rows, lengths), Sizes(rows, lengths)


def _padded(
    rows: Rows, sizes: Sizes, batch_first: bool, padding: float, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(length, _Longest):
        _refuse("pads a packed sequence to the length of the longest one")
    y = torch.where(_valid(rows), rows.rows, torch.full_like(rows.rows, padding))
    more = length - y.shape[0]
    if more:
        y = torch.cat([y, y.new_full((more, *y.shape[1:]), padding)])
    return y.transpose(0, 1) if batch_first else y, rows.lengths


def _valid(rows: Rows) -> torch.Tensor:
    position = torch.arange(rows.rows.shape[0], device=rows.device)
    valid = position.unsqueeze(1) < rows.lengths.unsqueeze(0)
    return valid.view(*valid.shape, *[1] * (rows.rows.dim() - 2))


State = tuple[torch.Tensor, ...]
Cell = Callable[[torch.Tensor, torch.Tensor, State, Sequence[torch.Tensor]], State]


def _lstm_cell(x: torch.Tensor, h: torch.Tensor, state: State, projection: Sequence[torch.Tensor]) -> State:
    i, f, g, o = (x + h).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    y = o.sigmoid() * c.tanh()
    return F.linear(y, projection[0]) if projection else y, c


def _gru_cell(x: torch.Tensor, h: torch.Tensor, state: State, _: Sequence[torch.Tensor]) -> State:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    z, n = (xz + hz).sigmoid(), (xn + (xr + hr).sigmoid() * hn).tanh()
    return (n + z * (state[0] - n),)


def _recurrent(cell: Cell, single: bool) -> Callable[..., Any]:
    def layers(
        rows: Rows, sizes: Sizes, first: Any, weights: Sequence[torch.Tensor], biased: bool, count: int,
        dropout: float, training: bool, bidirectional: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        directions = 2 if bidirectional else 1
        each = len(weights) // (count * directions)
        initial: State = (first,) if single else tuple(first)
        valid, x = _valid(rows), rows.rows
        last: list[State] = []
        for layer in range(count):
            outputs = []
            for direction in range(directions):
                at = layer * directions + direction
                own = weights[at * each : (at + 1) * each]
                y, state = _run(cell, x, valid, tuple(s[at] for s in initial), own, biased, direction == 1)
                outputs.append(y)
                last.append(state)
            x = torch.cat(outputs, -1)
            if layer + 1 < count:
                x = F.dropout(x, dropout, training)
        states = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
        return (Rows(x, rows.lengths), *states)

    return layers


def _run(
    cell: Cell, x: torch.Tensor, valid: torch.Tensor, state: State, weights: Sequence[torch.Tensor],
    biased: bool, is_reversed: bool,
) -> tuple[torch.Tensor, State]:  # fmt: skip
    """Run one layer in one direction; a sequence that has ended, or not yet begun, keeps its state."""
    of_x, of_h = weights[:2]
    bias_x, bias_h = weights[2:4] if biased else (None, None)
    projection = weights[4 if biased else 2 :]
    read = F.linear(x, of_x, bias_x)
    results: dict[int, torch.Tensor] = {}
    positions = range(len(x))
    for t in reversed(positions) if is_reversed else positions:
        new = cell(read[t], F.linear(state[0], of_h, bias_h), state, projection)
        state = tuple(torch.where(valid[t], n, old) for n, old in zip(new, state, strict=True))
        results[t] = state[0]
    return torch.stack([results[t] for t in positions]), state


_KNOWN: Mapping[Any, Callable[..., Any]] = {
    torch._VF._pad_packed_sequence: _padded,
    torch._VF.lstm: _recurrent(_lstm_cell, single=False),
    torch._VF.gru: _recurrent(_gru_cell, single=True),
    torch._VF.rnn_tanh: _recurrent(lambda x, h, state, _: ((x + h).tanh(),), single=True),
    torch._VF.rnn_relu: _recurrent(lambda x, h, state, _: ((x + h).relu(),), single=True),
}


def _layer_by_layer(function: Callable[..., Any], *args: Any) -> Any:
    """Run one layer after the other with dropout in between; time comes first, as in eager's masks."""
    if not isinstance(args[3], bool):  # a packed sequence, which is unpacked elsewhere
        return function(*args)
    x, hx, parameters, has_biases, layers, dropout, trains, bidirectional, batch_first = args
    if not trains or not dropout or layers == 1:
        return function(*args)
    states: Sequence[torch.Tensor] = hx if isinstance(hx, list | tuple) else [hx]
    directions, each = 1 + bidirectional, len(parameters) // layers
    x = x.transpose(0, 1) if batch_first else x
    last: list[Sequence[torch.Tensor]] = []
    for layer in range(layers):
        first = [state[layer * directions : (layer + 1) * directions] for state in states]
        own = parameters[layer * each : (layer + 1) * each]
        hidden = first if isinstance(hx, list | tuple) else first[0]
        x, *behind = function(x, hidden, own, has_biases, 1, 0.0, trains, bidirectional, False)
        last.append(behind)
        if layer < layers - 1:
            x = F.dropout(x, dropout, training=True)
    return (x.transpose(0, 1) if batch_first else x), *(torch.cat(parts) for parts in zip(*last, strict=True))


FUNCTIONS = {
    function: partial(_layer_by_layer, function)
    for function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
}
