"""Whether rounding as a plan says errs no more than noise of the size of a rounding does."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from campo_onnx import Precision
from campo_onnx.emulation.numerics import emulate
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ir.shapes import infer
from campo_onnx.planning.pipeline import Optimized
from tests.random_graphs.builder import Array, RandomGraph, captured
from tests.random_graphs.raised import LOW_TYPES, Feeds, OracleError, Runner, raised, raised_interface, wide

_ROUNDING = {Precision.FP16: 2.0**-11, Precision.BF16: 2.0**-8}
_WHOLE_IN_FP32 = 2.0**24
_INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
_RUNS, _MANY_RUNS = 4, 60
_SLACK = 40.0


def within_reach(graph: RandomGraph, result: Optimized, run: Runner) -> None:
    """Rounding as the plan says errs no more than noise of the size of a rounding does.

    The noise is put on what the plan makes low. Whole numbers that were integers, and that no data had a
    part in, have none: to lose one is wrong, however small a part it is of the number.
    """
    low = result.plan.low
    original = raised(graph.model)
    feeds = {name: wide(value) for name, value in graph.feeds.items()}
    try:
        expected = run(original, feeds)
        mixed_before = run(raised_interface(emulate(graph.model)), feeds)
        mixed_after = run(raised_interface(emulate(result.model)), feeds)
        with_noise = _noise_on_low_tensors(result, feeds, low, run)
    except UnsupportedModelError:
        return
    except Exception:
        return  # a graph that was low in parts has kernels for that alone
    data = _data(original)
    # Rounding makes some of what is compared equal, which noise does not.
    unstable = data & _downstream(
        original.graph, {n.output[0] for n in original.graph.node if n.op_type == "Equal"}
    )
    for runs in (_RUNS, _MANY_RUNS):
        try:
            noisy = [run(with_noise(seed), feeds) for seed in range(runs)]
        except Exception:
            return  # sizes depend on data, and noise of one size meets a tensor of another
        try:
            _compare(expected, mixed_before, mixed_after, noisy, data, unstable)
        except OracleError:
            # Noise may have missed a step that rounding takes: of a quantization, or a comparison.
            if runs == _MANY_RUNS:
                raise
        else:
            return


def _compare(
    expected: Feeds,
    mixed_before: Feeds,
    mixed_after: Feeds,
    noisy: list[Feeds],
    data: set[str],
    unstable: set[str],
) -> None:
    for name, value in expected.items():
        others = [outcome[name] for outcome in noisy]
        actual = mixed_after[name]
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


def _noise_on_low_tensors(
    result: Optimized, feeds: Feeds, low: Precision, run: Runner
) -> Callable[[int], ModelProto]:
    """Find the values of what is low, and make graphs in FP32 with noise on them."""
    model = raised(result.model, result.imported)
    dtypes = infer(result.model, {}).dtypes
    low_tensors = [t for node in model.graph.node for t in node.output if dtypes.get(t) in LOW_TYPES]
    probe = ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:], probe.graph.value_info[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in low_tensors)
    values = run(probe, feeds) if low_tensors else {}
    exact = _counted(model, dtypes) - _data(model)
    stored = {t.name for t in result.model.graph.initializer if t.data_type in LOW_TYPES}

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
    reached = set(tensors)
    is_growing = True
    while is_growing:  # nodes may stand in any order
        before = len(reached)
        for node in graph.node:
            reads_values = node.op_type not in ("Shape", "Size")
            if reads_values and reached.intersection((*node.input, *captured(node))):
                reached.update(node.output)
        is_growing = len(reached) > before
    return reached


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
