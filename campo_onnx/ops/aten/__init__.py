"""Operators that ONNX Runtime hands back to PyTorch, by what they are called there."""

from campo_onnx.ops.aten import operators

SPECS = operators.SPECS
