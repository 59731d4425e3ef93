"""Ways to decide precision, each a :class:`campo_onnx.optimize.strategy.Strategy`.

Help, defaults, the rows of ``compare`` and what may be padded follow from these values.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from campo_onnx.errors import UsageError
from campo_onnx.optimize.strategies.campo import campo
from campo_onnx.optimize.strategies.fine_grained import fine_grained
from campo_onnx.optimize.strategies.fp32 import fp32
from campo_onnx.optimize.strategies.nvidia_amp import nvidia_amp
from campo_onnx.optimize.strategies.optimal import optimal
from campo_onnx.optimize.strategies.tf_amp import tf_amp
from campo_onnx.optimize.strategies.torch_amp import torch_amp
from campo_onnx.optimize.strategy import Strategy

_ALL = (
    Strategy(
        name="optimal",
        title="the assignment nothing can beat under the same lists and costs",
        rule=optimal,
        is_cost_aware=True,
    ),
    Strategy(name="campo", title="the paper's four traverses", rule=campo, is_cost_aware=True),
    Strategy(
        name="fine-grained",
        title="low unless FP32 is faster by --margin-us",
        rule=fine_grained,
        parameters={"margin_us": 1000.0},
    ),
    Strategy(
        name="nvidia-amp",
        title="NVIDIA's white list, black list, and the rest follows its first input; without costs",
        rule=nvidia_amp,
        default_lists="nvidia",
    ),
    Strategy(
        name="torch-amp",
        title="what torch.autocast does, call by call; without costs",
        rule=torch_amp,
        default_lists="pytorch",
    ),
    Strategy(
        name="tf-amp",
        title="TensorFlow's graph pass, the paper's baseline; without costs",
        rule=tf_amp,
        default_lists="tf115",
        compared_with=("tf2", "campo"),
    ),
    Strategy(name="fp32", title="change nothing", rule=fp32),
)

STRATEGIES: Mapping[str, Strategy] = MappingProxyType({strategy.name: strategy for strategy in _ALL})
"""Strategies by the name the command line calls them."""

DEFAULT_STRATEGY = "optimal"


def strategy_called(name: str) -> Strategy:
    """Find a strategy.

    Raises
    ------
    UsageError
        If there is none of that name.
    """
    if name not in STRATEGIES:
        near = get_close_matches(name, STRATEGIES, n=1)
        remedy = f"Did you mean {near[0]!r}?" if near else f"Choose one of: {', '.join(STRATEGIES)}."
        raise UsageError(f"unknown strategy {name!r}", remedy=remedy)
    return STRATEGIES[name]
