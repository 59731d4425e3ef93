"""A backend for torch.compile that trains on ONNX Runtime in cost-aware mixed precision.

>>> import torch
>>> model = torch.nn.Linear(4, 2)  # doctest: +SKIP
>>> model = torch.compile(model, backend="campo_onnx", options={"device": "h200"})  # doctest: +SKIP
>>> print(report(model))  # doctest: +SKIP
"""

from campo_onnx.integrations.torch_compile.backend import campo_onnx
from campo_onnx.integrations.torch_compile.report import Report, RunningGraph, report
from campo_onnx.integrations.torch_compile.settings import Settings

__all__ = ["Report", "RunningGraph", "Settings", "campo_onnx", "report"]
