"""A backend for torch.compile that trains on ONNX Runtime in cost-aware mixed precision.

>>> import torch
>>> model = torch.nn.Linear(4, 2)  # doctest: +SKIP
>>> model = torch.compile(model, backend="campo_onnx")  # doctest: +SKIP
"""

from campo_onnx.integrations.torch_compile.backend import campo_onnx

__all__ = ["campo_onnx"]
