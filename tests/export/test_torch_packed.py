"""Packed sequences through recurrent layers, held against torch; what would see the padding is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from campo_onnx.errors import UnsupportedModelError

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_torch import TOLERANCE, weighted_sum, worst_deviation
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from campo_onnx.export.torch import export_training_step

LENGTHS, LONGEST = torch.tensor([3, 4, 1, 3]), 5


class Packed(nn.Module):
    """A recurrent layer on sequences of other lengths than the batch is wide."""

    def __init__(
        self, layer: Any, between: Callable[[Any], Any] = lambda y: y, total: int | None = 6
    ) -> None:
        super().__init__()
        self.layer, self.between, self.total = layer, between, total

    def forward(self, x: Any, lengths: Any) -> Any:
        first = self.layer.batch_first
        y, state = self.layer(pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False))
        y, sizes = pad_packed_sequence(
            self.between(y), batch_first=first, padding_value=0.5, total_length=self.total
        )
        states = state if isinstance(state, tuple) else (state,)
        return torch.cat([y.flatten(), *(s.flatten() for s in states), sizes.float()])


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True),
        lambda: nn.LSTM(4, 5, 2, proj_size=3),
        lambda: nn.GRU(4, 5, bidirectional=True),
        lambda: nn.RNN(4, 5, nonlinearity="relu", bias=False, batch_first=True),
        lambda: nn.RNN(4, 5),
    ],
    ids=["lstm", "lstm with projections", "gru", "relu", "tanh"],
)
def test_sequences_of_any_length_are_torchs(layer: Callable[[], Any]) -> None:
    module = Packed(layer())
    # Behind the end of a sequence lies what must not matter.
    x = torch.randn((4, LONGEST, 4) if module.layer.batch_first else (LONGEST, 4, 4))
    assert worst_deviation(module, weighted_sum, [x, LENGTHS], []) < TOLERANCE


def halved(y: Any) -> Any:
    return PackedSequence(y.data * 0.5, y.batch_sizes, y.sorted_indices, y.unsorted_indices)


def seen(y: Any) -> Any:
    return y if len(y.data.shape) > 1 else None


REFUSED = {
    "function": (
        lambda y: torch.relu(y.data),
        11,
        r"test_torch_packed.py:\d+ calls relu on a packed sequence",
    ),
    "elements": (halved, 6, r"test_torch_packed.py:\d+ computes with a packed sequence \(mul\)"),
    "shape": (seen, 6, r"test_torch_packed.py:\d+ reads 'shape' of a packed sequence"),
    "count": (lambda y: y.batch_sizes[1], 6, r"test_torch_packed.py:\d+ reads how many sequences are left"),
    "longest": (lambda y: y, None, r"test_torch_packed.py:\d+ pads .* to the length of the longest one"),
}


@pytest.mark.parametrize(("between", "total", "message"), REFUSED.values(), ids=REFUSED)
def test_what_depends_on_lengths_is_refused_by_line(between: Any, total: int | None, message: str) -> None:
    module = Packed(nn.GRU(4, 5, batch_first=True), between, total)
    with pytest.raises(
        UnsupportedModelError, match=message + ".*pad_packed_sequence\\(y, total_length=.*mask"
    ):
        export_training_step(module, weighted_sum, (torch.randn(4, LONGEST, 4), LENGTHS))
