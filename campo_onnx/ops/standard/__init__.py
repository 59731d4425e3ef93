"""Operators of ONNX's standard domains, one file a family."""

from campo_onnx.ops.standard import (
    control,
    elementwise,
    movement,
    normalization,
    products,
    reductions,
    sources,
    training,
)

SPECS = (
    *products.SPECS,
    *normalization.SPECS,
    *reductions.SPECS,
    *elementwise.SPECS,
    *movement.SPECS,
    *sources.SPECS,
    *control.SPECS,
    *training.SPECS,
)
