"""Every operator that is translated to torch, with its row."""

from collections.abc import Mapping
from types import MappingProxyType

from campo_onnx.ops.key import OpKey
from campo_onnx.runtime.torch.translation import (
    activations,
    aten_operators,
    control,
    convolutions,
    elementwise,
    gradients,
    indexing,
    losses,
    movement,
    normalization,
    pooling,
    products,
    quantization,
    raised_operators,
    random,
    recurrent,
    reductions,
    resize,
    sequences,
    spectral,
)
from campo_onnx.runtime.torch.translation.node import Row

_FAMILIES = (
    activations,
    aten_operators,
    control,
    convolutions,
    elementwise,
    gradients,
    indexing,
    losses,
    movement,
    normalization,
    pooling,
    products,
    quantization,
    raised_operators,
    random,
    recurrent,
    reductions,
    resize,
    sequences,
    spectral,
)

TABLE: Mapping[OpKey, Row] = MappingProxyType(
    {OpKey.parse(label): row for family in _FAMILIES for label, row in family.ROWS.items()}
)
