"""The networks of published speed-ups, narrow, against torch eager."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch
from torch import nn

from benchmarks.published.networks import (
    NETWORKS,
    ConvS2S,
    DeepSpeech2,
    Gnmt,
    Sentiment,
    TransformerBig,
    Wav2Letter,
)
from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.export.torch import export_training_step
from campo_onnx.optimize.plan.reason import Reason
from tests.export import against_torch
from tests.export.against_torch import TOLERANCE


def words(*, words: int, columns: int) -> Any:
    return torch.randint(words, (2, columns))


def translation() -> Any:
    return (words(words=20, columns=5), words(words=20, columns=4)), (words(words=20, columns=4),)


def speech(*shape: int) -> Any:
    return (torch.randn(2, *shape),), (torch.randint(1, 6, (2, 3)),)


def text() -> Any:
    return (words(words=10, columns=4),), (words(words=10, columns=4),)


def wide_awake() -> Any:
    """A GNMT whose attention has gradients far above rounding: with torch's own weights they are of 1e-6."""
    module = Gnmt(20, 8)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3.0)
    return module


def without_dropout() -> Any:
    """A Transformer that drops nothing: masks within attention cannot be replayed in eager."""
    module = TransformerBig(20, 8, 2, 1, 6)
    for part in module.modules():
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
        elif isinstance(part, nn.Dropout):
            part.p = 0.0
    return module


NARROW: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "gnmt": (wide_awake, translation),
    "transformer_big": (without_dropout, translation),
    "conv_s2s": (partial(ConvS2S, 20, 6, ((8, 3), (10, 3), (12, 1)), 6), translation),
    "deep_speech2": (partial(DeepSpeech2, 16, 6, 2, 6), partial(speech, 1, 16, 20)),
    "wav2letter": (partial(Wav2Letter, 6, ((8, 5), (8, 5), (10, 1)), 6), partial(speech, 6, 20)),
    "sentiment": (partial(Sentiment, 8, 4, 10), text),
}


def test_all_of_them_are_tried() -> None:
    assert [*NARROW] == [*NETWORKS]


@pytest.mark.parametrize("name", NARROW)
def test_every_gradient_is_eagers(name: str) -> None:
    build, batch = NARROW[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, (inputs, targets) = build(), batch()
    assert against_torch.worst_deviation(module, NETWORKS[name].loss, inputs, targets) < TOLERANCE


@pytest.mark.parametrize("name", ["deep_speech2", "wav2letter"])
def test_what_stands_for_no_path_in_ctc_keeps_no_gradient_in_fp32(name: str) -> None:
    """CTC has -1e30 for log(0), which no gradient holds: it is behind exp(x - log(sum(exp(x))))."""
    build, batch = NARROW[name]
    module, (inputs, targets) = build(), batch()
    model = export_training_step(module, NETWORKS[name].loss, inputs, targets)
    plan = optimize_model(model, Options(target=target("v100"), lists=oplists("campo"))).plan
    products = [d for d in plan.decisions if d.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    assert products
    assert not [d for d in products if d.decided_by is Reason.VALUE_OVERFLOW]
