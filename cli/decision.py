"""Options of strategies and op lists, and their mapping to a plan's `Options`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from campo_onnx.optimize.strategies import DEFAULT_STRATEGY, STRATEGIES, strategy_called

from .completion import complete_lists, complete_strategies
from .error_limit import MaxErrorOption, MaxTimeOption
from .evidence import Basis, TargetArguments, flat_weights_finder
from .options import (
    DECISION,
    SAFETY,
    DimOption,
    KeepFp32Option,
    MarginOption,
    PrecisionOrAutoOption,
    RangeOption,
    dimensions,
    low_precision,
    option,
    ranges,
)

if TYPE_CHECKING:
    from campo_onnx.optimize.lists.oplists import OpLists
    from campo_onnx.planning.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyArguments:
    """Options of the decision itself."""

    strategy: Annotated[
        str,
        option(
            DECISION,
            metavar="NAME",
            autocompletion=complete_strategies,
            help=" ".join(f"`{s.name}`: {s.title}." for s in STRATEGIES.values()),
        ),
    ] = DEFAULT_STRATEGY
    precision: PrecisionOrAutoOption = None
    max_error: MaxErrorOption = None
    max_time_us: MaxTimeOption = None
    min_gain: Annotated[
        float,
        option(
            DECISION,
            metavar="SHARE",
            min=0.0,
            max=1.0,
            help="For cost-aware strategies: the share of the step that must be predicted to be saved; below "
            "it the step stays FP32, since costs are not known more precisely.",
        ),
    ] = 0.01
    margin_us: MarginOption = 1000.0
    lower: Annotated[
        bool,
        option(
            DECISION,
            "--lower",
            help="Choose the forms of convolutions for the device in a graph of another exporter too.",
        ),
    ] = False
    no_pads: Annotated[
        bool,
        option(
            DECISION,
            "--no-pads",
            help="Do not zero-pad matrix products for tensor cores. By default cost-aware strategies pad "
            "where that is predicted to pay.",
        ),
    ] = False
    pad_threshold_us: Annotated[
        float,
        option(
            DECISION,
            "--pad-threshold-us",
            metavar="US",
            min=0.0,
            help="Microseconds that padding a node must save beyond the predicted cost of its pads.",
        ),
    ] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphArguments:
    """Options about the graph: its sizes, its values, and nodes that the user knows better."""

    dim: DimOption = None
    keep_fp32: KeepFp32Option = None
    value_range: RangeOption = None


def _on_list(name: str) -> object:
    return option(SAFETY, f"--{name}", metavar="OP", help=f"Put an operator on the {name} list.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListArguments:
    """Options that say which nodes may run in low precision."""

    lists: Annotated[
        str | None,
        option(
            SAFETY,
            metavar="NAME|FILE",
            autocompletion=complete_lists,
            help="Which operators may run in low precision: a preset (campo, tf115, tf2, pytorch, nvidia) or "
            "a file of your own. By default the strategy's own lists.",
        ),
    ] = None
    allow: Annotated[list[str] | None, _on_list("allow")] = None
    infer: Annotated[list[str] | None, _on_list("infer")] = None
    clear: Annotated[list[str] | None, _on_list("clear")] = None
    deny: Annotated[list[str] | None, _on_list("deny")] = None
    strict: Annotated[
        bool,
        option(
            SAFETY,
            "--strict",
            help="Fail if --allow, --infer, --clear, --deny or --keep-fp32 matches no node, or a list file "
            "names an operator that ONNX does not have, instead of a warning.",
        ),
    ] = False

    def resolved(self, strategy: str) -> "OpLists":
        """The lists that are meant: those named, or the strategy's own, with single operators moved."""
        from campo_onnx.optimize.lists.list_file import resolve
        from campo_onnx.optimize.lists.oplists import with_overrides

        lists = resolve(self.lists if self.lists is not None else strategy_called(strategy).default_lists)
        moved = {name: getattr(self, name) or () for name in _OPERATORS}
        return with_overrides(lists, **moved)

    @property
    def operators(self) -> dict[str, list[str] | None]:
        """Operators by the option that named them."""
        return {f"--{name}": getattr(self, name) for name in _OPERATORS}


_OPERATORS = ("allow", "infer", "clear", "deny")


def plain_options(
    basis: Basis, where: TargetArguments, graph: GraphArguments, decision: StrategyArguments, lists: "OpLists"
) -> "Options":
    """Make the options of a plan of those of a command; `basis` is what `where` opened."""
    from campo_onnx.planning.options import Options

    return Options(
        target=basis.target,
        lists=lists,
        strategy=decision.strategy,
        margin_us=decision.margin_us,
        low=low_precision(decision.precision, basis.target.runtime.name),
        keep_fp32=tuple(graph.keep_fp32 or ()),
        dims=dimensions(graph.dim),
        costs=basis.costs,
        evidence=basis.evidence,
        lowers_any=decision.lower,
        pads=not decision.no_pads,
        pad_threshold_us=decision.pad_threshold_us,
        min_gain=decision.min_gain,
        ranges=ranges(graph.value_range),
        flat_weights=flat_weights_finder(where.flat_weights),
    )
