"""ONNX graphs as functions of torch tensors, which torch can trace, compile or run as they are."""

from campo_onnx.runtime.torch.translation.translate import Translation, translate

__all__ = ["Translation", "translate"]
