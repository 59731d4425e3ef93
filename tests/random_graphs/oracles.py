"""What must hold of every optimized graph, whatever the graph, the strategy and the costs."""

import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from campo_onnx import Options, Plan, Precision, device, oplists
from campo_onnx.costs.table import CostTable
from campo_onnx.errors import CampoError, UnsupportedModelError
from campo_onnx.ir.importer import Imported, import_model
from campo_onnx.ir.shapes import infer
from campo_onnx.optimize.oplists import OpClass
from campo_onnx.optimize.passes import taint
from campo_onnx.optimize.problem import Problem
from campo_onnx.pipeline import Optimized, apply, decide, problem_of
from campo_onnx.training.numerics import emulate
from tests.random_graphs.builder import Array, RandomGraph, captured, run

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

Feeds = Mapping[str, Array]
Runner = Callable[[ModelProto, Feeds], Mapping[str, Array]]

_LOW_TYPES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


class OracleError(AssertionError):
    """An oracle does not hold; `kind` says which."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind, self.detail = kind, detail


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
        chosen = device(self.device)
        if self.pads and chosen.provider == "cuda":
            # Products are all that costs there, and tensor cores a thousand times as fast: pads pay.
            chosen = replace(
                chosen,
                **dict.fromkeys(("launch_us", "host_us"), 1e-9),
                **dict.fromkeys(("fp32_flops_per_s", "fp16_flops_per_s"), 1e6),
                memory_bandwidth_bytes_per_s=1e18,
                fp16_tensor_flops_per_s=1e9,
                tf32_flops_per_s=None,
                tf32_default=False,
            )
        return Options(
            device=chosen,
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
            return f"refused: {_gist(str(error))}"
        raise OracleError("refused a valid graph", _gist(str(error))) from error
    except Exception as error:
        raise OracleError(f"crash {type(error).__name__}", _gist(str(error))) from error
    _valid(graph, result)
    _price(result)
    _least(result, setting)
    _once(result, setting)
    if not result.plan.low_nodes:
        return "ok, nothing low"
    if run is not None:
        _loads(graph, result, setting, run)
        _same_in_fp32(graph, result, run)
        _within_reach(graph, result, run)
    return "ok"


def _gist(text: str) -> str:
    return re.sub(r"'[^']*'|[\d.]+|\(.*?\)", "_", " ".join(text.split()))[:110]


def _valid(graph: RandomGraph, result: Optimized) -> None:
    try:
        onnx.checker.check_model(result.model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise OracleError("invalid", _gist(str(error))) from error
    for field in ("input", "output"):
        if list(getattr(result.imported.model.graph, field)) != list(getattr(result.model.graph, field)):
            raise OracleError("interface", field)
    given, written = graph.model.graph, result.model.graph
    if [v.name for v in given.input] != [v.name for v in written.input]:
        raise OracleError("interface", "input names")
    if list(given.output) != list(written.output):
        raise OracleError("interface", "outputs")


def _loads(graph: RandomGraph, result: Optimized, setting: Setting, run: Runner) -> None:
    if setting.low is Precision.FP16 or setting.device == "cpu":
        try:
            run(result.model, graph.feeds)
        except Exception as error:
            # What a GPU would run is loaded here to see that types agree; kernels are others there.
            if setting.device == "cpu" or "Type Error" in str(error):
                raise OracleError("does not run", _gist(str(error))) from error


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


# --- the same in FP32 --------------------------------------------------------------------------


def _same_in_fp32(graph: RandomGraph, result: Optimized, run: Runner) -> None:
    """With every low type turned back into FP32, both graphs compute the same to the bit."""
    given, written = raised(graph.model), raised(result.model, result.imported)
    feeds = {name: _wide(value) for name, value in graph.feeds.items()}
    try:
        expected = run(given, feeds)
    except Exception:
        return  # what the graph computes in low precision has no FP32 kernel
    try:
        found = run(written, feeds)
    except Exception as error:
        raise OracleError("does not run in FP32", _gist(str(error))) from error
    for name, value in expected.items():
        if not isinstance(value, np.ndarray) or np.array_equal(
            value, found[name], equal_nan=value.dtype.kind == "f"
        ):
            continue
        # A padded product adds up zeros as well, in another order.
        if not result.plan.pads or not np.allclose(value, found[name], rtol=1e-4, atol=1e-4, equal_nan=True):
            raise OracleError("other values in FP32", name)


def _wide(value: Any) -> Any:
    if isinstance(value, list):
        return [_wide(item) for item in value]
    is_low = isinstance(value, np.ndarray) and value.dtype.name in ("float16", "bfloat16")
    return value.astype(np.float32) if is_low else value


def raised(model: ModelProto, imported: Imported | None = None) -> ModelProto:
    """Turn every FP16 and BF16 into FP32.

    Parameters
    ----------
    imported
        For a graph of ours the one it came from: constants get their FP32 values back.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    _raise_graph(copy.graph)
    if imported is not None:
        _restore_fills(copy.graph, imported.model.graph)
    for function in copy.functions:
        _raise_nodes(function.node)
    if imported is not None:
        given = {tensor.name for tensor in imported.model.graph.initializer}
        for tensor in copy.graph.initializer:
            source = re.sub(r"_(fp16|bf16)(_\d+)?(_padded(_\d+)?)?$", "", tensor.name)
            if tensor.name not in given and source in imported.constants:
                exact = numpy_helper.to_array(imported.constants[source])
                ends = [(0, long - size) for long, size in zip(tensor.dims, exact.shape, strict=True)]
                longer = np.pad(exact, ends) if ends else exact
                tensor.CopyFrom(numpy_helper.from_array(longer, tensor.name))
    return copy


def _restore_fills(graph: GraphProto, given: GraphProto) -> None:
    fills = {node.name: node for node in given.node if node.op_type == "ConstantOfShape"}
    for node in graph.node:
        if node.name in fills:
            del node.attribute[:]
            node.attribute.extend(fills[node.name].attribute)


def _raise_graph(graph: GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in _LOW_TYPES:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in graph.initializer:
        _raise_tensor(tensor)
    _raise_nodes(graph.node)


def _raise_nodes(nodes: Iterator[onnx.NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "output_dtype", "stash_type") and attribute.i in _LOW_TYPES:
                attribute.i = TensorProto.FLOAT
            _raise_tensor(attribute.t)
            for body in (attribute.g, *attribute.graphs):
                _raise_graph(body)


def _raise_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _LOW_TYPES:
        exact = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(exact, tensor.name))


# --- within reach ------------------------------------------------------------------------------

_ROUNDING = {Precision.FP16: 2.0**-11, Precision.BF16: 2.0**-8}
_WHOLE_IN_FP32 = 2.0**24
_INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
_RUNS, _MANY_RUNS = 4, 60
_SLACK = 40.0


def _within_reach(graph: RandomGraph, result: Optimized, run: Runner) -> None:
    """Rounding as the plan says errs no more than noise of the size of a rounding does.

    The noise is put on what the plan makes low. Whole numbers that were integers, and that no data had a
    part in, have none: to lose one is wrong, however small a part it is of the number.
    """
    low = result.plan.low
    given = raised(graph.model)
    feeds = {name: _wide(value) for name, value in graph.feeds.items()}
    try:
        expected = run(given, feeds)
        mixed_before = run(raised_interface(emulate(graph.model)), feeds)
        found = run(raised_interface(emulate(result.model)), feeds)
        with_noise = _noise_on_low_tensors(result, feeds, low, run)
    except UnsupportedModelError:
        return
    except Exception:
        return  # a graph that was low in parts has kernels for that alone
    data = _data(given)
    # Rounding makes some of what is compared equal, which noise does not.
    unstable = data & _downstream(
        given.graph, {n.output[0] for n in given.graph.node if n.op_type == "Equal"}
    )
    for runs in (_RUNS, _MANY_RUNS):
        try:
            noisy = [run(with_noise(seed), feeds) for seed in range(runs)]
        except Exception:
            return  # sizes depend on data, and noise of one size meets a tensor of another
        try:
            _compare(expected, mixed_before, found, noisy, data, unstable)
        except OracleError:
            # Noise may have missed a step that rounding takes: of a quantization, or a comparison.
            if runs == _MANY_RUNS:
                raise
        else:
            return


def _compare(
    expected: Feeds, mixed_before: Feeds, found: Feeds, noisy: list[Feeds], data: set[str], unstable: set[str]
) -> None:
    for name, value in expected.items():
        others = [outcome[name] for outcome in noisy]
        actual = found[name]
        if not isinstance(value, np.ndarray) or name in unstable:
            continue  # a sequence, or as above
        if actual.shape != value.shape or any(other.shape != value.shape for other in others):
            continue  # sizes that depend on data
        if value.dtype.kind == "f":
            # A graph that was low in parts is held against what it computed with those.
            reach = max(max(_distance(o, value), _distance(o, mixed_before[name])) for o in others)
            _float_within_reach(name, mixed_before[name], actual, reach)
        elif name not in data and not np.array_equal(mixed_before[name], actual):
            raise OracleError("wrong whole numbers", name)


def _distance(actual: Array, expected: Array) -> float:
    both = np.isfinite(expected) & np.isfinite(actual)
    return float(np.linalg.norm(actual[both].astype(np.float64) - expected[both].astype(np.float64)))


def _float_within_reach(name: str, expected: Array, actual: Array, reach: float) -> None:
    finite = np.isfinite(expected)
    if not np.isfinite(actual[finite]).all():
        raise OracleError("not finite", name)
    size = _distance(expected, np.zeros_like(expected))
    error = _distance(actual, expected)
    if error > _SLACK * reach + 1e-6 * size + 1e-12:
        size = max(size, 1e-30)
        raise OracleError("beyond reach", f"{name}: {error / size:.1e} where noise makes {reach / size:.1e}")


def raised_interface(model: ModelProto) -> ModelProto:
    """Let an emulated graph take and give FP32 where it takes and gives FP16."""
    return model if not any(_is_low(v) for v in (*model.graph.input, *model.graph.output)) else raised(model)


def _is_low(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in _LOW_TYPES


def _noise_on_low_tensors(
    result: Optimized, feeds: Feeds, low: Precision, run: Runner
) -> Callable[[int], ModelProto]:
    """Find the values of what is low, and make graphs in FP32 with noise on them."""
    model = raised(result.model, result.imported)
    dtypes = infer(result.model, {}).dtypes
    low_tensors = [t for node in model.graph.node for t in node.output if dtypes.get(t) in _LOW_TYPES]
    probe = ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:], probe.graph.value_info[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in low_tensors)
    values = run(probe, feeds) if low_tensors else {}
    exact = _counted(model, dtypes) - _data(model)
    stored = {t.name for t in result.model.graph.initializer if t.data_type in _LOW_TYPES}

    def with_noise(seed: int) -> ModelProto:
        rng = np.random.default_rng(seed)

        def noise(name: str, value: Array) -> Array:
            whole = (value == np.round(value)) & (np.abs(value) < _WHOLE_IN_FP32) & (name in exact)
            size = np.where(np.isfinite(value) & ~whole, value, 0.0).astype(np.float64)
            sign = rng.choice((-1.0, 1.0), value.shape)
            # Of no two sizes alike: noises of one size would cancel where a value is passed on.
            return np.asarray(size * sign * rng.uniform(0.5, 1.0, value.shape) * _ROUNDING[low], np.float32)

        return _with_noise(model, values, stored, noise)

    return with_noise


def _data(model: ModelProto) -> set[str]:
    """Tensors that inputs or constants of fractions have a part in; the rest is counted, not measured."""
    graph = model.graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            stored[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    data = {v.name for v in graph.input if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    data |= {name for name, v in stored.items() if v.dtype.kind == "f" and (v != np.round(v)).any()}
    return _downstream(graph, data)


def _counted(model: ModelProto, dtypes: Mapping[str, int]) -> set[str]:
    """Floats that integers were turned into, and what is computed from them: positions and counts."""
    casts = [node for node in model.graph.node if node.op_type == "Cast"]
    return _downstream(model.graph, {n.output[0] for n in casts if dtypes.get(n.input[0]) in _INTEGERS})


def _downstream(graph: GraphProto, tensors: set[str]) -> set[str]:
    found = set(tensors)
    is_growing = True
    while is_growing:  # nodes may stand in any order
        before = len(found)
        for node in graph.node:
            reads_values = node.op_type not in ("Shape", "Size")
            if reads_values and found.intersection((*node.input, *captured(node))):
                found.update(node.output)
        is_growing = len(found) > before
    return found


def _with_noise(
    model: ModelProto, values: Feeds, stored: set[str], noise: Callable[[str, Array], Array]
) -> ModelProto:
    noisy = ModelProto()
    noisy.CopyFrom(model)
    for tensor in noisy.graph.initializer:
        if tensor.name in stored:
            value = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(value + noise(tensor.name, value), tensor.name))
    nodes = []
    for node in noisy.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        nodes.append(copy)
        for position, name in enumerate(node.output):
            if name not in values or not (added_values := noise(name, values[name])).any():
                continue
            exact, added = f"{name}_without_noise", f"{name}_noise"
            copy.output[position] = exact
            noisy.graph.initializer.append(numpy_helper.from_array(added_values, added))
            nodes.append(helper.make_node("Add", [exact, added], [name]))
    del noisy.graph.node[:], noisy.graph.value_info[:]
    noisy.graph.node.extend(nodes)
    return noisy
