"""Every operator that is translated to torch, with its row."""

from collections.abc import Mapping
from types import MappingProxyType

from campo_onnx.ops.key import OpKey
from campo_onnx.runtime.torch.translation import (
    activations,
    elementwise,
    movement,
    products,
    reductions,
)
from campo_onnx.runtime.torch.translation.node import Row

_FAMILIES = (activations, elementwise, movement, products, reductions)

TABLE: Mapping[OpKey, Row] = MappingProxyType(
    {OpKey.parse(label): row for family in _FAMILIES for label, row in family.ROWS.items()}
)
