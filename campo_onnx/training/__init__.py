"""Training with mixed-precision graphs: a step loop, loss scaling, and FP16 numerics on a CPU."""

from campo_onnx.training.display import progress

__all__ = ["progress"]
