"""Properties of every optimized graph, whatever the graph, the strategy and the costs."""

import itertools
import random
from dataclasses import dataclass, replace

import onnx
from onnx import ModelProto

from campo_onnx import Options, Plan, Precision, oplists, target
from campo_onnx.costs.table import CostTable
from campo_onnx.errors import CampoError, UnsupportedModelError
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.lists.oplists import OpClass
from campo_onnx.optimize.passes import taint
from campo_onnx.optimize.problem import Problem
from campo_onnx.planning.pipeline import Optimized, apply, decide, problem_of
from tests.random_graphs.builder import RandomGraph, run
from tests.random_graphs.raised import OracleError, Runner, gist, same_in_fp32
from tests.random_graphs.reach import within_reach

STRATEGIES = (
    "fine-grained",
    "optimal",
    "tf-amp",
    "fine-grained",
    "optimal",
    "campo",
    "torch-amp",
    "nvidia-amp",
)
DEVICES = ("v100", "h200", "a100", "cpu")
LISTS = {"tf-amp": ("tf115", "tf2"), "torch-amp": ("pytorch",), "nvidia-amp": ("nvidia",)}

MOST_FREE_NODES = 10  # brute force tries all subsets of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a graph is optimized."""

    strategy: str
    lists: str
    low: Precision
    device: str
    cost_seed: int
    keep_fp32: tuple[str, ...] = ()

    @classmethod
    def drawn(cls, seed: int) -> "Setting":
        rng = random.Random(f"setting {seed}")
        strategy = rng.choice(STRATEGIES)
        low = rng.choice((Precision.FP16, Precision.FP16, Precision.FP16, Precision.BF16))
        return cls(
            strategy=strategy,
            lists=rng.choice(LISTS.get(strategy, ("campo",))),
            low=low,
            device=rng.choice(DEVICES if low is Precision.FP16 else ("h200", "a100", "cpu")),
            cost_seed=rng.getrandbits(30),
            keep_fp32=("Mul",) if rng.random() < 0.05 else (),
        )

    @property
    def pads(self) -> bool:
        """Whether costs are those of a device on which zero-padding pays, rather than random."""
        return self.cost_seed % 4 == 0

    @property
    def options(self) -> Options:
        chosen = target(self.device)
        if self.pads and chosen.hardware.is_gpu:
            # Products are all that costs there, and tensor cores a thousand times as fast: pads pay.
            chosen = replace(
                chosen,
                **dict.fromkeys(("launch_us", "host_us"), 1e-9),
                hardware=replace(
                    chosen.hardware,
                    **dict.fromkeys(("fp32_flops_per_s", "fp16_flops_per_s"), 1e6),
                    memory_bandwidth_bytes_per_s=1e18,
                    fp16_tensor_flops_per_s=1e9,
                    tf32_flops_per_s=None,
                ),
            )
        return Options(
            target=chosen,
            lists=oplists(self.lists),
            strategy=self.strategy,
            low=self.low,
            margin_us=1e12,
            min_gain=0.0,
            keep_fp32=self.keep_fp32,
        )


def optimized(model: ModelProto, setting: Setting) -> Optimized:
    """Optimize as the pipeline does, at random costs that make low precision attractive."""
    options = setting.options
    imported = import_model(model)
    problem = problem_of(imported, options)
    if not setting.pads:
        problem = replace(problem, costs=_random_costs(problem, setting.cost_seed))
        options = replace(options, pads=False)
    return apply(decide(problem, imported, options), problem, imported)


def _random_costs(problem: Problem, seed: int) -> CostTable:
    rng = random.Random(seed)
    nodes = {}
    for node in problem.view.nodes:
        cost = problem.costs.nodes[node.name]
        fp32_us = rng.choice((1.0, 3.0, 10.0, rng.random()))
        is_free = not problem.ports[node.name].refusal
        share = rng.choice((0.25, 0.5, 0.5, rng.random(), 1.2)) if is_free else 1.0
        nodes[node.name] = replace(cost, fp32_us=fp32_us, low_us=fp32_us * share)
    cast = replace(problem.costs.cast, r_us=rng.choice((0.0, 0.01)), c_i_us=rng.choice((0.0, 0.1, 1.0)))
    return replace(problem.costs, nodes=nodes, cast=cast)


# --- the oracles -------------------------------------------------------------------------------


def check(graph: RandomGraph, setting: Setting, run: Runner | None = run) -> str:
    """Optimize a graph and hold the result against every oracle.

    Parameters
    ----------
    graph, setting
        The graph, and how to optimize it.
    run
        What runs it; None where nothing can, so that values are not compared.

    Returns
    -------
    str
        ``ok``, with how many nodes are low; or why the graph was refused.

    Raises
    ------
    OracleError
        If an oracle does not hold.
    """
    try:
        result = optimized(graph.model, setting)
    except CampoError as error:
        if isinstance(error, UnsupportedModelError):
            return f"refused: {gist(str(error))}"
        raise OracleError("refused a valid graph", gist(str(error))) from error
    except Exception as error:
        raise OracleError(f"crash {type(error).__name__}", gist(str(error))) from error
    _valid(graph, result)
    _price(result)
    _least(result, setting)
    _once(result, setting)
    if not result.plan.low_nodes:
        return "ok, nothing low"
    if run is not None:
        _loads(graph, result, setting, run)
        same_in_fp32(graph, result, run)
        within_reach(graph, result, run)
    return "ok"


def _valid(graph: RandomGraph, result: Optimized) -> None:
    try:
        onnx.checker.check_model(result.model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise OracleError("invalid", gist(str(error))) from error
    for field in ("input", "output"):
        if list(getattr(result.imported.model.graph, field)) != list(getattr(result.model.graph, field)):
            raise OracleError("interface", field)
    original, written = graph.model.graph, result.model.graph
    if [v.name for v in original.input] != [v.name for v in written.input]:
        raise OracleError("interface", "input names")
    if list(original.output) != list(written.output):
        raise OracleError("interface", "outputs")


def _loads(graph: RandomGraph, result: Optimized, setting: Setting, run: Runner) -> None:
    if setting.low is Precision.FP16 or setting.device == "cpu":
        try:
            run(result.model, graph.feeds)
        except Exception as error:
            # What a GPU would run is loaded here to see that types agree; kernels are others there.
            if setting.device == "cpu" or "Type Error" in str(error):
                raise OracleError("does not run", gist(str(error))) from error


def _price(result: Optimized) -> None:
    """The plan's price is that of the graph as it was written."""
    plan, problem, costs = result.plan, result.problem, result.problem.costs
    if plan.pads:
        return
    low, view = plan.low_nodes, problem.view
    names = {node.name for node in result.model.graph.node}
    price_us = 0.0
    for node in view.nodes:
        cost = costs.nodes[node.name]
        if node.name in names:
            price_us += cost.low_us if node.name in low else cost.fp32_us
        elif node.op.op_type not in ("Cast", "Constant"):
            raise OracleError("price", f"{node.op.label} is gone")
        elif node.op.op_type == "Constant":
            price_us += cost.fp32_us
    casts = 0
    for node in result.model.graph.node:
        if node.name not in view.node:
            if node.op_type != "Cast":
                raise OracleError("price", f"{node.op_type} was added")
            fp32 = next((t for t in (*node.output, *node.input) if view.is_float32(t)), "")
            price_us += costs.cast.cast_us(view.tensors[fp32].elements or 0)
            casts += 1
    if casts != len(plan.casts):
        raise OracleError("price", "Casts written are not Casts planned")
    if abs(price_us - plan.predicted_us) > 1e-6 * max(1.0, price_us):
        raise OracleError("price", "predicted is not that of the graph")


def _least(result: Optimized, setting: Setting) -> None:
    """No assignment is faster than the optimal one."""
    plan, problem = result.plan, result.problem
    if setting.strategy != "optimal" or plan.pads or result.was_optimized_before:
        return
    free = _free_nodes(problem)
    if len(free) > MOST_FREE_NODES:
        return
    subsets = itertools.chain.from_iterable(itertools.combinations(free, n) for n in range(len(free) + 1))
    least_us = min(problem.predicted_us(frozenset(subset)) for subset in subsets)
    if plan.predicted_us > least_us + 1e-6 * max(1.0, least_us):
        raise OracleError("not the least", f"{plan.predicted_us} instead of {least_us}")
    if plan.lower_bound_us is None or plan.lower_bound_us > least_us + 1e-6 * max(1.0, least_us):
        raise OracleError("lower bound", f"{plan.lower_bound_us} for {least_us}")


def _free_nodes(problem: Problem) -> list[str]:
    tainted = taint(problem.view, problem.classification)
    may_be_low = (OpClass.ALLOW, OpClass.INFER, OpClass.CLEAR)
    return [
        node.name
        for node in problem.view.nodes
        if problem.is_free(node.name)
        and node.name not in tainted
        and problem.op_class(node.name) in may_be_low
    ]


def _once(result: Optimized, setting: Setting) -> None:
    again = optimized(result.model, setting)
    if again.model != result.model:
        raise OracleError("twice is not once")
    if Plan.from_json(result.plan.to_json()) != result.plan:
        raise OracleError("plan does not survive JSON")
