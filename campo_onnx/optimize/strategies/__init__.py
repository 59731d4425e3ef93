"""Ways to decide precision, each a :class:`campo_onnx.optimize.strategy.Strategy`.

Help, defaults, the rows of ``compare`` and what may be padded follow from these values.
"""

from collections.abc import Mapping
from types import MappingProxyType

from campo_onnx.errors import UsageError, did_you_mean
from campo_onnx.optimize.strategy import Strategy, later

_HERE = "campo_onnx.optimize.strategies"
_ALL = (
    Strategy(
        name="optimal",
        title="the shortest predicted step that lists, safety rules and costs allow",
        rule=later(f"{_HERE}.optimal:optimal"),
        is_cost_aware=True,
    ),
    Strategy(
        name="campo",
        title="the four traverses of the Campo paper",
        rule=later(f"{_HERE}.campo:campo"),
        is_cost_aware=True,
    ),
    Strategy(
        name="fine-grained",
        title="low precision unless FP32 is faster by more than --margin-us",
        rule=later(f"{_HERE}.fine_grained:fine_grained"),
        parameters={"margin_us": 1000.0},
    ),
    Strategy(
        name="nvidia-amp",
        title="NVIDIA's allow and deny lists, without costs; other nodes follow their first input",
        rule=later(f"{_HERE}.dispatch:nvidia_amp"),
        default_lists="nvidia",
    ),
    Strategy(
        name="torch-amp",
        title="the rules of torch.autocast, without costs",
        rule=later(f"{_HERE}.dispatch:torch_amp"),
        default_lists="pytorch",
    ),
    Strategy(
        name="tf-amp",
        title="TensorFlow's graph pass (the paper's baseline), without costs",
        rule=later(f"{_HERE}.tf_amp:tf_amp"),
        default_lists="tf115",
        compared_with=("tf2", "campo"),
    ),
    Strategy(name="fp32", title="change nothing", rule=later(f"{_HERE}.listed:fp32")),
)

STRATEGIES: Mapping[str, Strategy] = MappingProxyType({strategy.name: strategy for strategy in _ALL})
"""Strategies by the name the command line calls them."""

DEFAULT_STRATEGY = "optimal"


def strategy_called(name: str) -> Strategy:
    """Find a strategy."""
    if name not in STRATEGIES:
        raise UsageError(f"unknown strategy {name!r}", remedy=did_you_mean(name, STRATEGIES))
    return STRATEGIES[name]
