"""Options of a plan: everything that the user, or a caller, may choose."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.errors import UsageError
from campo_onnx.ir.flat_weights import FlatWeights
from campo_onnx.ir.view import GraphView
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import OpLists
from campo_onnx.optimize.plan.reason import Verdict
from campo_onnx.optimize.strategies import DEFAULT_STRATEGY, strategy_called
from campo_onnx.optimize.strategy import Strategy
from campo_onnx.optimize.values.ranges import DeclaredRange
from campo_onnx.targets.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that a plan follows from, beside the graph.

    Parameters
    ----------
    target
        What to plan for: hardware and the runtime on it.
    dims
        Sizes of symbolic dimensions, by name.
    margin_us
        For the strategy fine-grained: by how much FP32 must be faster to be kept.
    keep_fp32
        Regular expressions for node names or operators that stay FP32.
    costs, evidence
        Where costs come from, and what is known beside public figures.
    pads, pad_threshold_us
        Whether strategies that decide by costs may zero-pad products to fit tensor cores, and what
        that must gain per node beyond its predicted cost.
    min_gain
        Share of the FP32 step that a cost-aware strategy must be predicted to save; below it the graph
        stays FP32, since no cost is known better.
    ranges
        Lowest and highest value of graph inputs, where they are known.
    forbidden, released
        What data says (:mod:`campo_onnx.emulation.data_safety`): nodes that would break, with the
        reason, and tainted nodes that are shown harmless.
    flat_weights
        Finds the weights that the session keeps in one buffer and casts at once to FP16, as
        :func:`campo_onnx.training.low_weights.flat_weights` does for a session with an update of its own;
        None where each weight has its own Cast.
    lowers
        Whether the graph may be brought into the form that the target runs best (:mod:`campo_onnx.lowering`)
        before it is planned.
    lowers_any
        Whether forms of convolutions are chosen in a graph of another exporter as well.

    Raises
    ------
    UsageError
        If the strategy is unknown, or a figure is out of its range.
    """

    target: Target
    lists: OpLists
    strategy: str = DEFAULT_STRATEGY
    margin_us: float = 1000.0
    low: Precision = Precision.FP16
    keep_fp32: tuple[str, ...] = ()
    dims: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    costs: CostSource = CostSource.DATASHEET
    evidence: Evidence = field(default_factory=Evidence)
    pads: bool = True
    pad_threshold_us: float = 0.0
    min_gain: float = 0.01
    ranges: Mapping[str, DeclaredRange] = field(default_factory=lambda: MappingProxyType({}))
    forbidden: Mapping[str, Verdict] = field(default_factory=lambda: MappingProxyType({}))
    released: frozenset[str] = frozenset()
    flat_weights: Callable[[GraphView], FlatWeights] | None = None
    lowers: bool = True
    lowers_any: bool = False

    def __post_init__(self) -> None:
        strategy_called(self.strategy)
        for name in ("dims", "forbidden", "ranges"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        object.__setattr__(self, "keep_fp32", tuple(self.keep_fp32))
        object.__setattr__(self, "released", frozenset(self.released))
        if self.low is Precision.FP32:
            raise UsageError("FP32 is not a low precision", remedy="Choose fp16 or bf16.")
        for name, lowest, highest in (
            ("margin_us", -math.inf, math.inf),
            ("pad_threshold_us", 0.0, math.inf),
            ("min_gain", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise UsageError(f"{name} is {value}", why=f"it must be from {lowest:g} to {highest:g}")

    @property
    def chosen_strategy(self) -> Strategy:
        """The strategy, tuned."""
        return strategy_called(self.strategy).tuned(margin_us=self.margin_us)

    @property
    def may_pad(self) -> bool:
        """Whether products may be zero-padded."""
        return self.pads and self.chosen_strategy.is_cost_aware
