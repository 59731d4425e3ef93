"""RNN, GRU and LSTM, a step of a sequence after another."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from campo_onnx.runtime.torch.translation.activations import softplus
from campo_onnx.runtime.torch.translation.node import Node, Row

Function = Callable[[Tensor], Tensor]
State = tuple[Tensor, ...]
Step = Callable[[Tensor, State], State]

_FUNCTIONS: dict[str, Callable[[float | None, float | None], Function]] = {
    "affine": lambda a, b: lambda x: (1.0 if a is None else a) * x + (0.0 if b is None else b),
    "elu": lambda a, b: lambda x: F.elu(x, 1.0 if a is None else a),
    "hardsigmoid": lambda a, b: (
        lambda x: (x * (0.2 if a is None else a) + (0.5 if b is None else b)).clamp(0, 1)
    ),
    "leakyrelu": lambda a, b: lambda x: F.leaky_relu(x, 0.01 if a is None else a),
    "relu": lambda a, b: torch.relu,
    "scaledtanh": lambda a, b: (
        lambda x: (1.0 if a is None else a) * torch.tanh((1.0 if b is None else b) * x)
    ),
    "sigmoid": lambda a, b: torch.sigmoid,
    "softplus": lambda a, b: softplus,
    "softsign": lambda a, b: F.softsign,
    "tanh": lambda a, b: torch.tanh,
}


def _activations(node: Node, defaults: Sequence[str], directions: int) -> list[list[Function]]:
    """List the activations of each direction."""
    names = [name.lower() for name in node.get("activations", list(defaults) * directions)]
    if unknown := [name for name in names if name not in _FUNCTIONS]:
        raise node.refusal(f"its activation {unknown[0]!r} is not translated")
    alphas, betas = iter(node.get("activation_alpha", [])), iter(node.get("activation_beta", []))
    takes_alpha = {"affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh"}
    takes_beta = {"affine", "hardsigmoid", "scaledtanh"}
    functions = [
        _FUNCTIONS[name](
            next(alphas, None) if name in takes_alpha else None,
            next(betas, None) if name in takes_beta else None,
        )
        for name in names
    ]
    size = len(defaults)
    return [functions[first : first + size] for first in range(0, len(functions), size)]


class _Weights:
    """Weights of one direction."""

    def __init__(self, node: Node, tensors: Sequence[Tensor | None], direction: int, gates: int) -> None:
        weight, recurrence, bias, peephole = (None if t is None else t[direction] for t in tensors)
        assert weight is not None  # these two are not optional
        assert recurrence is not None
        self.weight, self.recurrence = weight, recurrence
        size = self.recurrence.shape[-1]
        self.size, self.bound = size, node.get("clip")
        half = gates * size
        self.bias = None if bias is None else bias[:half]
        self.recurrent_bias = None if bias is None else bias[half:]
        self.peepholes = None if peephole is None else peephole.split(size)

    def clipped(self, x: Tensor) -> Tensor:
        """Bound what goes into an activation."""
        return x if self.bound is None else x.clamp(-self.bound, self.bound)

    def input_part(self, x: Tensor) -> Tensor:
        """Multiply all steps of the sequence with the weights at once."""
        return F.linear(x, self.weight, self.bias)


def _rnn(node: Node, w: _Weights, f: Sequence[Function]) -> Step:
    def step(part: Tensor, state: State) -> State:
        (h,) = state
        return (f[0](w.clipped(part + F.linear(h, w.recurrence, w.recurrent_bias))),)

    return step


def _gru(node: Node, w: _Weights, f: Sequence[Function]) -> Step:
    after = node.flag("linear_before_reset")

    def step(part: Tensor, state: State) -> State:
        (h,) = state
        inputs = part.split(w.size, -1)
        matrices = w.recurrence.split(w.size)
        biases = (None,) * 3 if w.recurrent_bias is None else w.recurrent_bias.split(w.size)
        update, reset = (f[0](w.clipped(inputs[i] + F.linear(h, matrices[i], biases[i]))) for i in range(2))
        if after:
            candidate = inputs[2] + reset * F.linear(h, matrices[2], biases[2])
        else:
            candidate = inputs[2] + F.linear(reset * h, matrices[2], biases[2])
        return ((1 - update) * f[1](w.clipped(candidate)) + update * h,)

    return step


def _lstm(node: Node, w: _Weights, f: Sequence[Function]) -> Step:
    coupled = node.flag("input_forget")

    def step(part: Tensor, state: State) -> State:
        h, c = state
        gates = part + F.linear(h, w.recurrence, w.recurrent_bias)
        into, out, forget, cell = gates.split(w.size, -1)
        if w.peepholes is not None:
            into, forget = into + w.peepholes[0] * c, forget + w.peepholes[2] * c
        into = f[0](w.clipped(into))
        forget = 1 - into if coupled else f[0](w.clipped(forget))
        c = forget * c + into * f[1](w.clipped(cell))
        if w.peepholes is not None:
            out = out + w.peepholes[1] * c
        return f[0](w.clipped(out)) * f[2](c), c

    return step


def _recurrent(
    make: Callable[..., Step], gates: int, states: int, defaults: Sequence[str]
) -> Callable[..., tuple[Tensor, ...]]:
    def compute(
        node: Node,
        x: Tensor,
        weight: Tensor,
        recurrence: Tensor,
        bias: Tensor | None = None,
        lengths: Tensor | None = None,
        *more: Tensor | None,
    ) -> tuple[Tensor, ...]:
        initial, peephole = more[:states], more[states] if len(more) > states else None
        by_batch = node.flag("layout")
        x = x.transpose(0, 1) if by_batch else x
        directions = weight.shape[0]
        functions = _activations(node, defaults, directions)
        outputs: list[Tensor] = []
        lasts: list[State] = []
        for direction in range(directions):
            w = _Weights(node, (weight, recurrence, bias, peephole), direction, gates)
            state = tuple(
                _first(start, direction, by_batch, x, w.size)
                for start in (*initial, *[None] * states)[:states]
            )
            backward = node.get("direction", "forward") == "reverse" or direction == 1
            y, last = _run(make(node, w, functions[direction]), w.input_part(x), state, lengths, backward)
            outputs.append(y)
            lasts.append(last)
        y = torch.stack(outputs, 1)
        ends = [torch.stack(column) for column in zip(*lasts, strict=True)]
        if by_batch:
            return y.permute(2, 0, 1, 3), *(end.transpose(0, 1) for end in ends)
        return y, *ends

    return compute


def _first(start: Tensor | None, direction: int, by_batch: bool, x: Tensor, size: int) -> Tensor:
    if start is None:
        return torch.zeros([x.shape[1], size], dtype=x.dtype, device=x.device)
    return start[:, direction] if by_batch else start[direction]


def _run(
    step: Step, parts: Tensor, state: State, lengths: Tensor | None, backward: bool
) -> tuple[Tensor, State]:
    """Go through a sequence, forwards or backwards; those that have ended keep their state and give zeros."""
    count = parts.shape[0]
    results: list[Any] = [None] * count
    for place in reversed(range(count)) if backward else range(count):
        after = step(parts[place], state)
        output = after[0]
        if lengths is not None:
            goes_on = (lengths > place).unsqueeze(1)
            output = torch.where(goes_on, output, torch.zeros_like(output))
            after = tuple(torch.where(goes_on, new, old) for new, old in zip(after, state, strict=True))
        results[place], state = output, after
    return torch.stack(results), state


ROWS = {
    "GRU": Row(_recurrent(_gru, 3, 1, ("Sigmoid", "Tanh"))),
    "LSTM": Row(_recurrent(_lstm, 4, 2, ("Sigmoid", "Tanh", "Tanh"))),
    "RNN": Row(_recurrent(_rnn, 1, 1, ("Tanh",))),
}
