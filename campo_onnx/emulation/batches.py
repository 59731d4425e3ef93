"""Batches to try a step on where the user names none: ordinary data, and rows that real data has at times.

Integers stay within their tables, masks are 0 or 1, and what the user declares holds in every batch. Weights
are those of a layer before training, throughout.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.emulation.initial_weights import (
    branch_scales,
    initial_weights,
    is_weight,
    moved,
    operand_positions,
)
from campo_onnx.emulation.scale_search import LOSS_SCALE
from campo_onnx.ir.view import GraphView
from campo_onnx.optimize.updates import earlier_versions
from campo_onnx.optimize.values.loss_scale import gradient_outputs, loss_scaling
from campo_onnx.optimize.values.ranges import DeclaredRange
from campo_onnx.runtime.feeds import Feeds, synthesize

_MASKED = -0.7  # standard deviations: a quarter lies below
_TAIL = 8.0  # standard deviations that a value of real data may be off
_PIXELS = 700.0  # coordinates, times, counts: what is not multiplied by weights may be this large
_NEAR = (0.0, 1e-5, -1e-5, 2.0**-12, -(2.0**-12), 2.0**-9, -(2.0**-9), 0.03, -0.03)
_LARGEST_CONSTANT = 1e4
_OCTAVES = 30.0  # counts, prices and seconds since 1970 reach to 2^30
_APART = 0.01
_VIEWS_APART = 0.02  # two views of an example, or what a student and its teacher say of it
_LAYER_SCALE = 1e-6  # as ConvNeXt and CaiT begin
_THRESHOLDS = frozenset({"Clip", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min"})


class Batch(NamedTuple):
    """Values for every input, and what they are called in messages."""

    title: str
    feeds: Mapping[str, NDArray[Any]]
    # Inputs that hold these values only if low products bear them, else those of the first batch.
    doubtful: tuple[str, ...] = ()


def draw_batches(
    view: GraphView,
    products: Iterable[str] = (),
    ranges: Mapping[str, DeclaredRange] = MappingProxyType({}),
    *,
    nodes: Collection[str] | None = None,
) -> Iterator[Batch]:
    """Draw batches, the most ordinary first; the same ones for the same graph.

    They hold ordinary values; rows that are empty, repeated and extreme; values next to the constants they
    meet; inputs that are views of the same data; factors of branches as small as networks begin with; large
    coordinates; smooth rows and small offsets, whose differences are small; and data in units of its own, up
    to billions. A batch that would be like the ones before is left out.

    `products`: nodes that multiply by weights: an input that reaches none of them may hold large values.
    `nodes`: draw values for what these nodes read; None draws them for every input.

    Raises UnsupportedModelError if an input has no static shape, or a type that no values are drawn for.
    """
    scaling, products = loss_scaling(view), frozenset(products)
    # A formula without a product has no weights, though its output looks like a new version of an input.
    updated = earlier_versions(view) if products else ()
    # A step may return both the gradient and the new value of what is trained.
    gradients, new = (Counter(map(view.shape, names)) for names in (gradient_outputs(view, scaling), updated))
    trained = gradients | new
    if nodes is not None:
        view, products = part_of(view, nodes), products.intersection(nodes)
    within = {name: (r.lowest, r.highest) for name, r in ranges.items()}
    base = synthesize(view, within=within)
    scale = scaling.scale
    if scale in base and scale not in within:
        base[scale] = np.full_like(base[scale], LOSS_SCALE)
    data = _data(view, base, within, trained)
    signed = {name: value for name, value in base.items() if _has_any_sign(name, value, within)}
    base |= initial_weights({name: value for name, value in signed.items() if name not in data}, view)
    rng = np.random.default_rng(1)
    for name in data:
        drawn = rng.standard_normal(base[name].shape)
        base[name] = (drawn > _MASKED if _is_mask(name, view) else drawn).astype(base[name].dtype)
    yield Batch("ordinary values", base)
    rows = {
        name: _of_rows(base[name], rng, is_mask=_is_mask(name, view))
        for name in (*data, *_indices(view, base, within))
    }
    if rows:
        yield Batch("empty, repeated and extreme rows", {**base, **rows})
    constants = {name: met for name in data if (met := _constants_met(name, view))}
    if constants:
        near = {name: _near(base[name], met, rng) for name, met in constants.items()}
        yield Batch("values next to constants", {**base, **near})
    free = _meeting_no_product(data, view, products)
    views = _views([name for name in data if name not in free and not _is_mask(name, view)], base, rng)
    if views:
        yield Batch("views of the same data", {**base, **views})
    scales = branch_scales(signed.keys() - frozenset(data), view)
    if scales:
        yield Batch(
            "branches that hardly count", {**base, **{n: base[n] * np.float32(_LAYER_SCALE) for n in scales}}
        )
    if free:
        large = {name: _large(base[name], rng) for name in free}
        yield Batch("large coordinates", {**base, **large})
        yield Batch("values close to one another", {**base, **_close(free, base, rng)})
        small = {name: base[name] * np.float32(_APART) for name in _repeated(free, base)}
        if small:
            yield Batch("small offsets", {**base, **small})
    if products and (counts := _in_own_units(view, base, within, trained)):
        yield Batch("data in units of its own", {**base, **counts}, doubtful=tuple(counts))


def part_of(view: GraphView, nodes: Collection[str]) -> GraphView:
    """Some nodes of a graph, and the inputs that they read."""
    some = tuple(node for node in view.nodes if node.name in nodes)
    read = {t for node in some for t in (*node.inputs, *node.captures)}
    return replace(view, nodes=some, inputs=tuple(t for t in view.inputs if t in read))


def _data(
    view: GraphView,
    base: Feeds,
    within: Mapping[str, object],
    trained: Mapping[tuple[int, ...] | None, int],
) -> list[str]:
    """Inputs of any sign that are not weights, and that nothing wants positive.

    A batch may be as long as a layer: where more inputs have a shape than are trained, first operands are
    data.
    """
    return [name for name in _not_weights(view, base, trained) if _has_any_sign(name, base[name], within)]


def _not_weights(view: GraphView, base: Feeds, trained: Mapping[tuple[int, ...] | None, int]) -> list[str]:
    inputs = Counter(view.shape(t) for t in view.inputs)
    more = {shape for shape, count in trained.items() if inputs[shape] > count}
    return [
        name
        for name, value in base.items()
        if (value.shape not in trained or (value.shape in more and 0 in operand_positions(name, view)))
        and not is_weight(name, view)
    ]


def _has_any_sign(name: str, value: NDArray[Any], within: Mapping[str, object]) -> bool:
    return _varies(name, value, within) and bool(value.min() < 0)


def _varies(name: str, value: NDArray[Any], within: Mapping[str, object]) -> bool:
    return (
        value.dtype.kind == "f" and value.size > 1 and name not in within and bool(value.min() < value.max())
    )


def _in_own_units(
    view: GraphView,
    base: Feeds,
    within: Mapping[str, object],
    trained: Mapping[tuple[int, ...] | None, int],
) -> Feeds:
    """Counts, prices and times: of every size from one to billions, and of the signs that were drawn."""
    rng = np.random.default_rng(2)
    own: Feeds = {}
    for name in _not_weights(view, base, trained):
        value = base[name]
        holds_them = value.dtype != np.float16
        if holds_them and _varies(name, value, within) and not _is_mask(name, view):
            sizes = 2.0 ** rng.uniform(0.0, _OCTAVES, value.shape)
            own[name] = np.copysign(sizes, value).astype(value.dtype)
    return own


def _indices(view: GraphView, base: Feeds, within: Mapping[str, object]) -> list[str]:
    return [n for n, v in base.items() if v.dtype.kind in "iub" and v.size > 1 and n not in within]


def _of_rows(value: NDArray[Any], rng: np.random.Generator, *, is_mask: bool) -> NDArray[Any]:
    """The first row empty, the second like the third, the last as extreme as it may be."""
    axis = next((i for i, size in enumerate(value.shape) if size > 1), 0)
    rows = np.moveaxis(value.copy(), axis, 0)
    if value.dtype.kind == "f" and not is_mask:
        rows[-1] = rows[-1] * _TAIL
        rows[rng.random(rows.shape) < 0.01] *= _TAIL
    else:
        rows[-1] = value.max()
    if len(rows) > 2:
        rows[1] = rows[len(rows) // 2]
    rows[0] = 0
    return np.ascontiguousarray(np.moveaxis(rows, 0, axis))


def _constants_met(name: str, view: GraphView) -> list[float]:
    """Constants that an input is compared with or clipped to before it is computed with."""
    users = {use.node for tensor in moved(name, view) for use in view.consumers.get(tensor, ())}
    constants = set()
    for node in (view.node[user] for user in users):
        if node.op.op_type in _THRESHOLDS:
            values = (view.values[t] for t in node.inputs if t in view.values and view.values[t].size == 1)
            constants |= {float(v.reshape(-1)[0]) for v in values if v.dtype.kind in "fiu"}
    return sorted(c for c in constants if abs(c) <= _LARGEST_CONSTANT)


def _is_mask(name: str, view: GraphView) -> bool:
    """Whether an input is taken from 1, compared with 0 or 1, or made a truth value, before anything else."""
    for tensor in moved(name, view):
        for use in view.consumers.get(tensor, ()):
            node = view.node[use.node]
            others = [view.values[t] for t in node.inputs if t != tensor and t in view.values]
            is_unit = (
                len(others) == 1 and others[0].size == 1 and float(others[0].reshape(-1)[0]) in (0.0, 1.0)
            )
            if node.op.op_type == "Sub" and use.position == 1 and is_unit:
                return True
            if node.op.op_type == "Equal" and is_unit:
                return True
            if node.op.op_type == "Cast" and view.tensors[node.outputs[0]].dtype == TensorProto.BOOL:
                return True
    return False


def _near(value: NDArray[Any], constants: Sequence[float], rng: np.random.Generator) -> NDArray[Any]:
    chosen = rng.choice(np.array(constants), value.shape)
    offset = rng.choice(np.array(_NEAR), value.shape)
    return np.asarray(chosen + offset * np.maximum(np.abs(chosen), 1.0)).astype(value.dtype)


def _meeting_no_product(data: Sequence[str], view: GraphView, products: frozenset[str]) -> list[str]:
    if not products:
        return list(data)
    readers = {t for name in products for t in view.node[name].inputs}
    return [name for name in data if readers.isdisjoint(view.downstream((name,)))]


def _large(value: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Coordinates of boxes, ascending along the last axis, as corners are."""
    return np.sort(rng.uniform(0.0, _PIXELS, value.shape), axis=-1).astype(value.dtype)


def _close(names: Sequence[str], base: Feeds, rng: np.random.Generator) -> Feeds:
    """Samples of a smooth function along the last axis; inputs of a shape are a hundredth apart."""
    smooth: dict[tuple[int, ...], NDArray[Any]] = {}
    close: Feeds = {}
    for name in names:
        shape = base[name].shape
        if shape not in smooth:
            phase = rng.uniform(0.0, 2.0 * np.pi, (*shape[:-1], 1))
            smooth[shape] = 1.5 + np.sin(phase + np.linspace(0.0, np.pi, shape[-1]))
            close[name] = smooth[shape].astype(base[name].dtype)
        else:
            apart = _APART * rng.standard_normal(shape)
            close[name] = (smooth[shape] * (1.0 + apart)).astype(base[name].dtype)
    return close


def _views(names: Sequence[str], base: Feeds, rng: np.random.Generator) -> Feeds:
    """Inputs of a shape that an earlier one has, which differ from it a little."""
    first: dict[tuple[int, ...], NDArray[Any]] = {}
    views: Feeds = {}
    for name in names:
        shape = base[name].shape
        if shape in first:
            noise = _VIEWS_APART * rng.standard_normal(shape)
            views[name] = (first[shape] + noise).astype(base[name].dtype)
        else:
            first[shape] = base[name]
    return views


def _repeated(names: Sequence[str], base: Feeds) -> list[str]:
    """Inputs of a shape that an earlier one has."""
    shapes = [base[name].shape for name in names]
    return [name for i, name in enumerate(names) if shapes[i] in shapes[:i]]
