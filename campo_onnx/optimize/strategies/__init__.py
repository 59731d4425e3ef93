"""Ways to decide precision. A strategy is a plain function ``Problem -> Assignment``."""

from collections.abc import Mapping
from types import MappingProxyType

from campo_onnx.optimize.problem import Strategy
from campo_onnx.optimize.strategies.campo import campo
from campo_onnx.optimize.strategies.fine_grained import fine_grained
from campo_onnx.optimize.strategies.fp32 import fp32
from campo_onnx.optimize.strategies.nvidia_amp import nvidia_amp
from campo_onnx.optimize.strategies.optimal import optimal
from campo_onnx.optimize.strategies.tf_amp import tf_amp
from campo_onnx.optimize.strategies.torch_amp import torch_amp

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "optimal": optimal,
        "campo": campo,
        "tf-amp": tf_amp,
        "torch-amp": torch_amp,
        "nvidia-amp": nvidia_amp,
        "fine-grained": fine_grained,
        "fp32": fp32,
    }
)
"""Strategies by the name the command line calls them."""

DEFAULT_STRATEGY = "optimal"

DEFAULT_LISTS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(STRATEGIES, "campo") | {"tf-amp": "tf115", "torch-amp": "pytorch", "nvidia-amp": "nvidia"}
)
"""The list preset a strategy uses when none is named."""
