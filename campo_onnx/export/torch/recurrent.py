"""Dropout between the layers of recurrent networks, which torch's own decomposition of them leaves out."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F


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
