"""Ways to decide precision. A strategy is a plain function ``Problem -> Assignment``."""

from collections.abc import Mapping
from types import MappingProxyType

from campo_onnx.optimize.problem import Strategy
from campo_onnx.optimize.strategies.campo import campo
from campo_onnx.optimize.strategies.fp32 import fp32
from campo_onnx.optimize.strategies.optimal import optimal
from campo_onnx.optimize.strategies.tf_amp import tf_amp

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {"optimal": optimal, "campo": campo, "tf-amp": tf_amp, "fp32": fp32}
)
"""Strategies by the name the command line calls them."""

DEFAULT_LISTS: Mapping[str, str] = MappingProxyType(
    {"optimal": "campo", "campo": "campo", "tf-amp": "tf115", "fp32": "campo"}
)
"""The list preset a strategy uses when none is named."""
