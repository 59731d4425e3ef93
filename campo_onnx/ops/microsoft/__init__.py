"""ONNX Runtime's own operators, most of them of its training build, one file a family.

ONNX has no schemas for them. Which of their inputs and outputs share the data's type, and the
precisions the training build takes, were probed against ONNX Runtime 1.19.2, the last release with
a training build.
"""

from campo_onnx.ops.microsoft import (
    boundary,
    elementwise,
    movement,
    normalization,
    products,
    reductions,
    training,
)

SPECS = (
    *products.SPECS,
    *normalization.SPECS,
    *reductions.SPECS,
    *elementwise.SPECS,
    *movement.SPECS,
    *boundary.SPECS,
    *training.SPECS,
)
