"""Networks of NVIDIA's slides that the zoo lacks, at the sizes of their papers. Needs PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Tensors = tuple[Tensor, ...]
Layer = tuple[int, int]
"""Width and kernel of a convolution in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network and its batch.

    Parameters
    ----------
    title
        For tables.
    size
        Sizes, as a sentence tells them.
    build
        Makes the module.
    loss
        Of the module's output and the targets.
    batch
        Inputs and targets of so many samples.
    optimizer
        As the exporter calls it.
    """

    title: str
    size: str
    build: Callable[[], nn.Module]
    loss: Callable[..., Tensor]
    batch: Callable[[int], tuple[Tensors, Tensors]]
    optimizer: str = "adam"


def words_loss(logits: Tensor, words: Tensor) -> Tensor:
    """Cross entropy of the next word, over all positions."""
    return F.cross_entropy(logits.flatten(0, 1), words.flatten())


def letters_loss(scores: Tensor, letters: Tensor) -> Tensor:
    """CTC of scores (time, batch, letters); every transcript is as long as the longest."""
    frames = torch.full((scores.shape[1],), scores.shape[0])
    counts = torch.full((scores.shape[1],), letters.shape[1])
    return F.ctc_loss(scores.log_softmax(-1), letters, frames, counts)


class Gnmt(nn.Module):
    """GNMT (Wu et al. 2016) in its second version: four layers of LSTM a side, the first in both directions.

    The first layer of the decoder attends, and what it reads goes into all others.
    """

    def __init__(self, words: int = 32000, width: int = 1024) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.both = nn.LSTM(width, width, bidirectional=True, batch_first=True)
        self.encoder = nn.ModuleList(nn.LSTM(n * width, width, batch_first=True) for n in (2, 1, 1))
        self.query = nn.LSTM(width, width, batch_first=True)
        self.of_query, self.of_key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.decoder = nn.ModuleList(nn.LSTM(2 * width, width, batch_first=True) for _ in range(3))
        self.next, self.drop = nn.Linear(width, words), nn.Dropout(0.2)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Give logits (batch, time, words) of the words behind those of the target."""
        x, _ = self.both(self.drop(self.words(source)))
        for number, layer in enumerate(self.encoder):
            y, _ = layer(self.drop(x))
            x = y + x if number else y
        y, _ = self.query(self.drop(self.words(target)))
        pairs = torch.tanh(self.of_query(y).unsqueeze(2) + self.of_key(x).unsqueeze(1))
        read = self.score(pairs).squeeze(-1).softmax(-1) @ x
        for number, layer in enumerate(self.decoder):
            further, _ = layer(self.drop(torch.cat([y, read], -1)))
            y = further + y if number else further
        return self.next(y)


class TransformerBig(nn.Module):
    """Transformer, big (Vaswani et al. 2017), as Ott et al. (2018) trained it."""

    def __init__(
        self, words: int = 32768, width: int = 1024, heads: int = 16, layers: int = 6, longest: int = 256
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.layers = nn.Transformer(
            width, heads, layers, layers, 4 * width, dropout=0.3, batch_first=True
        )  # fmt: skip

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Give logits (batch, time, words) of the words behind those of the target."""
        read, written = (self.words(x) + self.places.weight[: x.shape[1]] for x in (source, target))
        later = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return F.linear(self.layers(read, written, tgt_mask=later, tgt_is_causal=True), self.words.weight)


class _Gated(nn.Module):
    """A gated convolution in time with its residual; in a decoder it sees nothing of what comes later."""

    def __init__(self, width: int, layer: Layer, sees_later: bool) -> None:
        super().__init__()
        filters, kernel = layer
        self.padding = (kernel // 2, kernel // 2) if sees_later else (kernel - 1, 0)
        self.convolution = nn.Conv1d(width, 2 * filters, kernel)
        self.residual = nn.Conv1d(width, filters, 1) if width != filters else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.convolution(F.pad(x, self.padding)), 1) + self.residual(x)


class ConvS2S(nn.Module):
    """ConvSeq2Seq (Gehring et al. 2017) for English-German: 15 layers a side; all of the decoder attend."""

    def __init__(
        self,
        words: int = 40000,
        width: int = 768,
        layers: tuple[Layer, ...] = ((512, 3),) * 9 + ((1024, 3),) * 4 + ((2048, 1),) * 2,
        longest: int = 256,
    ) -> None:
        super().__init__()
        widths = [layers[0][0], *(filters for filters, _ in layers)]
        self.words = nn.ModuleList(nn.Embedding(words, width) for _ in range(2))
        self.places = nn.ModuleList(nn.Embedding(longest, width) for _ in range(2))
        self.enter = nn.ModuleList(nn.Linear(width, widths[0]) for _ in range(2))
        self.encoder, self.decoder = (
            nn.ModuleList(_Gated(a, layer, sees) for a, layer in zip(widths[:-1], layers, strict=True))
            for sees in (True, False)
        )
        self.leave = nn.ModuleList(nn.Linear(widths[-1], width) for _ in range(2))
        self.ask = nn.ModuleList(nn.Linear(filters, width) for filters in widths[1:])
        self.answer = nn.ModuleList(nn.Linear(width, filters) for filters in widths[1:])
        self.next, self.drop = nn.Linear(width, words), nn.Dropout(0.2)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Give logits (batch, time, words) of the words behind those of the target."""
        read, written = (
            self.drop(self.words[side](x) + self.places[side].weight[: x.shape[1]])
            for side, x in enumerate((source, target))
        )
        x = self.enter[0](read).mT
        for layer in self.encoder:
            x = layer(self.drop(x))
        keys = self.leave[0](x.mT)
        values = keys + read
        y = self.enter[1](written).mT
        for layer, ask, answer in zip(self.decoder, self.ask, self.answer, strict=True):
            y = layer(self.drop(y))
            scores = (ask(y.mT) + written) @ keys.mT
            y = y + answer(scores.softmax(-1) @ values).mT
        return self.next(self.drop(self.leave[1](y.mT)))


class DeepSpeech2(nn.Module):
    """Deep Speech 2 (Amodei et al. 2016): two convolutions, five GRUs in both directions, letters."""

    def __init__(self, bands: int = 160, width: int = 800, layers: int = 5, letters: int = 29) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5), bias=False), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5), bias=False), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.recurrent = nn.GRU(bands // 4 * 32, width, layers, bidirectional=True)
        self.letters = nn.Linear(2 * width, letters)

    def forward(self, spectrogram: Tensor) -> Tensor:
        """Give scores (time, batch, letters) of a spectrogram (batch, 1, bands, time)."""
        y, _ = self.recurrent(self.convolutions(spectrogram).flatten(1, 2).permute(2, 0, 1))
        return self.letters(y)


_WAV2LETTER: tuple[Layer, ...] = (
    *((256, 11),) * 4, *((384, 13),) * 3, *((512, 17),) * 3, *((640, 21),) * 3, *((768, 25),) * 3,
    (896, 29), (1024, 1),
)  # fmt: skip


class Wav2Letter(nn.Module):
    """wav2letter (Collobert et al. 2016) as OpenSeq2Seq has it ("wav2letter+"): convolutions in time."""

    def __init__(self, bands: int = 64, layers: tuple[Layer, ...] = _WAV2LETTER, letters: int = 29) -> None:
        super().__init__()
        widths = (bands, *(filters for filters, _ in layers))
        parts: list[nn.Module] = []
        for (before, filters), (_, kernel) in zip(pairwise(widths), layers, strict=True):
            stride = 1 if parts else 2
            parts.append(nn.Conv1d(before, filters, kernel, stride, kernel // 2, bias=False))
            parts.extend([nn.BatchNorm1d(filters), nn.ReLU(), nn.Dropout(0.2)])
        self.layers = nn.Sequential(*parts, nn.Conv1d(widths[-1], letters, 1))

    def forward(self, spectrogram: Tensor) -> Tensor:
        """Give scores (time, batch, letters) of a spectrogram (batch, bands, time)."""
        return self.layers(spectrogram).permute(2, 0, 1)


class Sentiment(nn.Module):
    """A multiplicative LSTM over bytes (Radford et al. 2017), 4096 wide: NVIDIA's "Sentiment"."""

    def __init__(self, width: int = 4096, embedded: int = 64, letters: int = 256) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, embedded)
        self.factor_of_x, self.gates_of_x = nn.Linear(embedded, width), nn.Linear(embedded, 4 * width)
        self.factor_of_h = nn.Linear(width, width, bias=False)
        self.gates_of_m = nn.Linear(width, 4 * width, bias=False)
        self.next, self.width = nn.Linear(width, letters), width

    def forward(self, text: Tensor) -> Tensor:
        """Give logits (batch, time, letters) of the letters behind those of the text."""
        x = self.letters(text)
        factors, gates = self.factor_of_x(x), self.gates_of_x(x)
        h = c = x.new_zeros(x.shape[0], self.width)
        states = []
        for time in range(x.shape[1]):
            m = factors[:, time] * self.factor_of_h(h)
            i, f, o, u = (gates[:, time] + self.gates_of_m(m)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * u.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        return self.next(torch.stack(states, 1))


def _translation(count: int, length: int, words: int) -> tuple[Tensors, Tensors]:
    source, target, following = (torch.randint(words, (count, length)) for _ in range(3))
    return (source, target), (following,)


def _speech(count: int, shape: tuple[int, ...], letters: int) -> tuple[Tensors, Tensors]:
    return (torch.randn(count, *shape),), (torch.randint(1, 29, (count, letters)),)


def _text(count: int, length: int) -> tuple[Tensors, Tensors]:
    text, following = (torch.randint(256, (count, length)) for _ in range(2))
    return (text,), (following,)


NETWORKS = {
    "gnmt": Network(
        title="GNMT v2", size="4 + 4 layers of 1024, 32,000 words, sentences of 32 words",
        build=Gnmt, loss=words_loss, batch=lambda n: _translation(n, 32, 32000),
    ),
    "transformer_big": Network(
        title="Transformer, big", size="6 + 6 layers of 1024, 32,768 words, sentences of 32 words",
        build=TransformerBig, loss=words_loss, batch=lambda n: _translation(n, 32, 32768),
    ),
    "conv_s2s": Network(
        title="ConvSeq2Seq", size="15 + 15 layers of 512 to 2048, 40,000 words, sentences of 32 words",
        build=ConvS2S, loss=words_loss, batch=lambda n: _translation(n, 32, 40000), optimizer="momentum",
    ),
    "deep_speech2": Network(
        title="Deep Speech 2", size="two convolutions, 5 GRUs of 2 x 800, CTC, 2 s of sound",
        build=DeepSpeech2, loss=letters_loss, batch=lambda n: _speech(n, (1, 160, 200), 30),
    ),
    "wav2letter": Network(
        title="wav2letter", size="18 convolutions of 256 to 1024, CTC, 4 s of sound",
        build=Wav2Letter, loss=letters_loss, batch=lambda n: _speech(n, (64, 400), 60), optimizer="momentum",
    ),
    "sentiment": Network(
        title="Sentiment (mLSTM)", size="4096 wide, texts of 64 bytes",
        build=Sentiment, loss=words_loss, batch=lambda n: _text(n, 64),
    ),
}  # fmt: skip
"""By the names that rows.toml uses."""
