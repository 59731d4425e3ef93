"""Complex tensors of a traced graph as two real ones each, since ONNX Runtime computes with real numbers.

Autograd has been there before, so that gradients are among the operations that are replaced.
"""

import operator
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, TypeAlias

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.fourier import NO_COMPLEX, Complex, Fourier, exact_turns
from campo_onnx.export.torch.origin import origin_of

aten = torch.ops.aten

_Number: TypeAlias = complex | float | int | torch.Tensor | Complex
_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


def _turns(rows: int, columns: int, size: int, like: torch.Tensor) -> Complex:
    j, k = (torch.arange(n, device=like.device) for n in (rows, columns))
    return exact_turns(torch, j.unsqueeze(1) * k % size, size).map(lambda part: part.to(like.dtype))


FOURIER = Fourier(torch, _turns)


def _parts(z: _Number) -> Complex:
    """Take any number apart; a real one has an imaginary part of zero."""
    if isinstance(z, Complex):
        return z
    if isinstance(z, torch.Tensor):
        return Complex(z, torch.zeros_like(z, dtype=z.dtype if z.is_floating_point() else torch.float32))
    return Complex(z.real, z.imag)  # numbers of Python go where tensors go


def _by_part(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Do the same to both parts; of real operands that are computed with, the second is zero."""
    if kwargs.get("dtype") in _REAL:
        kwargs["dtype"] = _REAL[kwargs["dtype"]]

    def is_leaf(x: Any) -> bool:
        return isinstance(x, Complex)

    def part(x: Any, place: int) -> Any:
        is_data = is_leaf(x) or (isinstance(x, torch.Tensor) and x.is_floating_point())
        return _parts(x)[place] if is_data else x

    real, imaginary = (
        operation(*tree_map(partial(part, place=place), args, is_leaf=is_leaf), **kwargs) for place in (0, 1)
    )
    return list(map(Complex, real, imaginary)) if isinstance(real, list | tuple) else Complex(real, imaginary)


def _filled(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(x, complex) for x in args):
        return NotImplemented
    dtype = _REAL[kwargs.pop("dtype", None) or args[0].real.dtype.to_complex()]
    return _parts(operation(*(x.real if isinstance(x, Complex) else x for x in args), dtype=dtype, **kwargs))


def _converted(x: torch.Tensor | Complex, *, dtype: torch.dtype | None = None, **settings: Any) -> Any:
    if dtype is not None and not dtype.is_complex:
        return aten._to_copy(_parts(x).real, dtype=dtype, **settings)
    return _parts(x).map(lambda part: aten._to_copy(part, dtype=_REAL.get(dtype or part.dtype), **settings))


def _sum(x: _Number, y: _Number, *, alpha: Any = 1) -> Complex:
    x, y = _parts(x), _parts(y) if alpha == 1 else _product(y, alpha)
    return Complex(x.real + y.real, x.imaginary + y.imaginary)


def _is_real(x: _Number) -> bool:
    return not isinstance(x, Complex | complex)


def _product(x: _Number, y: _Number, multiply: Callable[..., Any] = operator.mul) -> Complex:
    (a, b), (c, d) = _parts(x), _parts(y)
    if _is_real(x):
        return Complex(multiply(a, c), multiply(a, d))
    if _is_real(y):
        return Complex(multiply(a, c), multiply(b, c))
    return Complex(multiply(a, c) - multiply(b, d), multiply(a, d) + multiply(b, c))


def _quotient(x: _Number, y: Any) -> Complex:
    if _is_real(y):
        return _parts(x).map(lambda part: part / y)
    if isinstance(y, complex):
        return _product(x, 1 / y)
    scale = torch.maximum(y.real.abs(), y.imaginary.abs())  # no square may overflow
    c, d = y.map(lambda part: part / scale)
    return _product(x, Complex(c, -d)).map(lambda part: part / (c * c + d * d) / scale)


def _conjugate(z: _Number) -> Complex:
    real, imaginary = _parts(z)
    return Complex(real, -imaginary)


def _equal(x: _Number, y: _Number) -> torch.Tensor:
    (a, b), (c, d) = _parts(x), _parts(y)
    return torch.eq(a, c) & torch.eq(b, d)


def _direction(z: Complex) -> Complex:
    size = torch.hypot(*z)
    return z.map(lambda part: torch.where(size == 0, 0.0, part / torch.where(size == 0, 1.0, size)))


def _polar(size: torch.Tensor, angle: torch.Tensor) -> Complex:
    return Complex(size * angle.cos(), size * angle.sin())


def _power(z: Complex, exponent: Any) -> Any:
    if exponent not in (1, 2, 3, 4):
        return NotImplemented
    return reduce(_product, [z] * int(exponent.real))


def _added(multiply: Any, x: _Number, y: _Number, z: _Number, *, beta: Any = 1, alpha: Any = 1) -> Complex:
    return _sum(_product(x, beta), _product(y, z, multiply), alpha=alpha)


_MOVES = """
    _unsafe_view alias cat clone copy cumsum detach diagonal expand flip gather index index_select
    lift_fresh_copy mean neg new_empty_strided new_zeros permute repeat reshape roll scatter select
    select_backward select_scatter slice slice_backward slice_scatter split split_with_sizes squeeze
    stack sum t transpose tril triu unbind unsqueeze view where zeros zeros_like
"""
"""Operations of which each part of the result is that of the same part of the operands."""

RULES: Mapping[str, Callable[..., Any]] = {
    "_conj": _conjugate,
    "_conj_physical": _conjugate,
    "_fft_c2c": FOURIER.complex_to_complex,
    "_fft_c2r": FOURIER.complex_to_real,
    "_fft_r2c": FOURIER.real_to_complex,
    "_to_copy": _converted,
    "abs": lambda z: torch.hypot(*z),
    "add": _sum,
    "addmm": partial(_added, torch.mm),
    "angle": lambda z: torch.atan2(z.imaginary, z.real),
    "baddbmm": partial(_added, torch.bmm),
    "bmm": partial(_product, multiply=torch.bmm),
    "complex": Complex,
    "constant_pad_nd": lambda z, widths, value=0: (
        NotImplemented if value else z.map(lambda part: torch.constant_pad_nd(part, widths))
    ),
    "div": _quotient,
    "eq": _equal,
    "exp": lambda z: _polar(z.real.exp(), z.imaginary),
    "mm": partial(_product, multiply=torch.mm),
    "mul": _product,
    "polar": _polar,
    "pow": _power,
    "reciprocal": partial(_quotient, 1),
    "sgn": _direction,
    "sign": _direction,
    "sub": lambda x, y, *, alpha=1: _sum(x, _product(y, alpha), alpha=-1),
    "view_as_complex": lambda x: Complex(x.select(-1, 0), x.select(-1, 1)),
    "view_as_real": lambda z: torch.stack(z, -1),
}
"""By operation, what becomes of the parts; NotImplemented where that is not written."""


def _in_two(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute a result with complex operands taken apart."""
    name = getattr(operation, "overloadpacket", operation).__name__
    if name in _MOVES.split():
        return _by_part(operation, *args, **kwargs)
    if name in ("full", "full_like", "scalar_tensor"):
        result = _filled(operation, *args, **kwargs)
    else:
        result = RULES[name](*args, **kwargs) if name in RULES else NotImplemented
    if result is NotImplemented:
        raise NotImplementedError(str(operation))
    return result


def without_complex(
    gm: torch.fx.GraphModule, decompositions: Mapping[Any, Callable[..., Any]]
) -> torch.fx.GraphModule:
    """Replace complex tensors by real ones.

    The graph is flat and of static sizes; its nodes know their fake values. It is changed: a complex input
    becomes what ``torch.view_as_real`` gives. A complex result, or an operation on complex tensors that is
    not supported, is an UnsupportedModelError.
    """
    parts: dict[torch.fx.Node, Any] = {}
    for node in list(gm.graph.nodes):
        if not (_is_complex(node) or parts.keys() & set(node.all_input_nodes)):
            continue
        if node.op in ("placeholder", "get_attr"):
            parts[node] = _stored(gm, node)
        elif node.target is operator.getitem:
            parts[node] = parts[node.args[0]][node.args[1]]
        elif node.op == "call_function":
            parts[node] = _in_parts(gm.graph, node, parts, decompositions)
            if not _is_complex(node):
                result = parts.pop(node)
                node.replace_all_uses_with(result.real if isinstance(result, Complex) else result)
        else:
            raise complex_refused("a result of the graph")
    if parts:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return gm


def _stored(gm: torch.fx.GraphModule, node: torch.fx.Node) -> Complex:
    """Take a complex input or constant as what lies in memory: one more axis, of two."""
    z = node.meta["val"]
    if node.op == "get_attr":
        node.target = f"{node.target}_parts"
        gm.register_buffer(
            node.target, torch.view_as_real(getattr(gm, node.target[:-6]).detach().resolve_conj())
        )
    with z.fake_mode:
        shape, strides = (*z.shape, 2), (*(2 * n for n in z.stride()), 1)
        node.meta["val"] = z.new_empty_strided(shape, strides, dtype=_REAL[z.dtype])
        part = node.meta["val"].select(-1, 0)
    halves = []
    for place in (1, 0):
        with gm.graph.inserting_after(node):
            halves.append(gm.graph.call_function(aten.select.int, (node, -1, place)))
        halves[-1].meta = {**node.meta, "val": part}
    return Complex(halves[1], halves[0])


def _in_parts(
    graph: torch.fx.Graph,
    node: torch.fx.Node,
    parts: Mapping[torch.fx.Node, Any],
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Any:
    """Write the operations that give the parts of a node's result, or the result if that is real."""
    operands = {n: parts.get(n, n) for n in node.all_input_nodes}
    leaves = list(dict.fromkeys(tree_leaves(list(operands.values()))))
    shapes: list[Any] = []

    def computed(*values: torch.Tensor) -> list[torch.Tensor]:
        value_of = dict(zip(leaves, values, strict=True))
        of_operand = {n: tree_map(value_of.__getitem__, each) for n, each in operands.items()}
        args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), of_operand.__getitem__)
        result = _in_two(node.target, *args, **kwargs)
        shapes.append(result)
        # Of a number of Python torch made a tensor.
        return [x if isinstance(x, torch.Tensor) else torch.full((), x) for x in tree_leaves(result)]

    mode = _tensors(node)[0].fake_mode
    try:
        with mode:
            # Tensors of their own: values of one type and shape may be one object, which stands for one.
            metas = [leaf.meta["val"].new_empty(leaf.meta["val"].shape) for leaf in leaves]
            traced = make_fx(computed, decomposition_table=dict(decompositions))(*metas)
    except NotImplementedError as error:
        origin = origin_of(node)
        place = origin.place or (f"module {origin.scope!r}" if origin.scope else "the outermost module")
        raise complex_refused(f"an operand of {error} at {place}") from None
    traced.graph.eliminate_dead_code()
    before = set(graph.nodes)
    with graph.inserting_before(node):
        copies = dict(zip((n for n in traced.graph.nodes if n.op == "placeholder"), leaves, strict=True))
        results = graph.graph_copy(traced.graph, copies)
    for new in set(graph.nodes) - before:
        new.meta = {**node.meta, "val": new.meta["val"]}
    if isinstance(shapes[-1], torch.Tensor) and results[0] not in before:
        results[0].meta["val"] = node.meta["val"]  # it lies as torch's would
    place = iter(results)
    return tree_map(lambda _: next(place), shapes[-1])


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]


def _is_complex(node: torch.fx.Node) -> bool:
    return any(tensor.is_complex() for tensor in _tensors(node))


def complex_refused(what: str) -> UnsupportedModelError:
    """Give the error for a complex tensor."""
    return UnsupportedModelError(
        f"{what} is complex",
        why=NO_COMPLEX,
        remedy="Compute with real and imaginary parts: torch.view_as_real gives both.",
    )
