"""From a traced graph of symbolic sizes to one of the sizes at hand."""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.integrations.torch_compile.warn_once import warn_once
from campo_onnx.ir.sizes.formulas import Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """The symbols in the sizes of a graph's inputs, and where to read what they stand for.

    `read_at` has for each the position among the arguments, and the axis of the tensor there; None for an
    argument that is the number itself.
    """

    names: tuple[Any, ...]  # symbols; none where all sizes are static
    read_at: tuple[tuple[int, int | None], ...]

    @classmethod
    def of(cls, placeholders: Sequence[torch.fx.Node]) -> "Symbols":
        """Find them."""
        _refuse_sizes_of_data(placeholders[0].graph.nodes if placeholders else ())
        read_at: dict[Any, tuple[int, int | None]] = {}
        used: set[Any] = set()
        for position, node in enumerate(placeholders):
            meta = node.meta["val"]
            numbers: Sequence[Any] = (meta,)
            if isinstance(meta, torch.Tensor):
                for axis, size in enumerate(meta.shape):
                    _note(read_at, size, (position, axis))
                numbers = (*meta.shape, *meta.stride())
            elif isinstance(meta, torch.SymInt):
                _note(read_at, meta, (position, None))
            elif not isinstance(meta, int):
                raise UnsupportedModelError(f"an argument is a {type(meta).__name__}, which is not a size")
            used |= {s for n in numbers if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols}
        if missing := used - read_at.keys():
            raise UnsupportedModelError(f"no input has the size {', '.join(sorted(map(str, missing)))}")
        names = tuple(sorted(used, key=str))
        return cls(names=names, read_at=tuple(read_at[name] for name in names))

    def read(self, arguments: Sequence[Any]) -> Sizes:
        """Read the sizes of a call."""
        return tuple(
            int(arguments[position] if axis is None else arguments[position].shape[axis])
            for position, axis in self.read_at
        )

    def traced_at(self, placeholders: Sequence[torch.fx.Node]) -> Sizes:
        """Give the sizes that the graph was traced at."""
        places = ((placeholders[position].meta["val"], axis) for position, axis in self.read_at)
        return tuple(int((meta if axis is None else meta.shape[axis]).node.hint) for meta, axis in places)


def _note(places: dict[Any, tuple[int, int | None]], size: Any, place: tuple[int, int | None]) -> None:
    if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
        places.setdefault(size.node.expr, place)


def _refuse_sizes_of_data(nodes: Iterable[torch.fx.Node]) -> None:
    """Refuse a graph in which the data of a tensor decides about the size of another."""
    for node in nodes:
        values = [v for v in listed(node.meta.get("val")) if isinstance(v, torch.Tensor | torch.SymInt)]
        if not has_free_unbacked_symbols(values):
            continue
        lines = re.findall(r'File "(.+)", line (\d+)', node.meta.get("stack_trace") or "")
        raise UnsupportedModelError(
            f"{':'.join(lines[-1]) if lines else node.name} decides about a size by data ({node.target})",
            why="sessions need sizes before they run",
            remedy="Leave torch._dynamo.config.capture_dynamic_output_shape_ops and capture_scalar_outputs "
            "off, as they are by default: what is before and behind that line is then compiled.",
        )


def are_polynomials(gm: torch.fx.GraphModule) -> bool:
    """Whether every size of a traced graph is a polynomial of its symbols: no halves, no remainders."""
    expressions = {
        number.node.expr
        for node in gm.graph.nodes
        for value in listed(node.meta.get("val"))
        for number in ((*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,))
        if isinstance(number, torch.SymInt | torch.SymFloat)
    }
    return all(e.is_polynomial(*e.free_symbols) for e in expressions)


def listed(meta: Any) -> Sequence[Any]:
    """Give one value, or several, as a sequence."""
    return meta if isinstance(meta, list | tuple) else (meta,)


def drop_oldest(cache: OrderedDict[Sizes, Any], most: int) -> None:
    """Drop what was not used for longest, and warn the first time: it is made again when its sizes return."""
    while len(cache) > most:
        cache.popitem(last=False)
        warn_once(
            f"campo-onnx has compiled a graph for more than {most} sets of sizes, and drops the one that "
            "was not used for longest: each takes seconds, and again when it returns. Pad to fewer "
            "lengths (pad_to_multiple_of in data collators of transformers), or keep more with "
            f'options={{"sessions": {2 * most}}}.',
            about="dropping",
        )


class Uncompiled(torch.fx.GraphModule):
    """A graph that is translated or interpreted: no Python is written, which torch keeps for good."""

    def recompile(self) -> Any:
        """Write nothing."""


def concrete_graph(gm: torch.fx.GraphModule, symbols: Symbols, sizes: Sizes) -> torch.fx.GraphModule:
    """Copy a graph for given sizes.

    ``meta["position"]`` of a placeholder is its place among the arguments; arguments that are numbers have
    none.
    """
    traced = _Static(dict(zip(symbols.names, sizes, strict=True)))
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, Any] = {}
    position = 0
    for node in gm.graph.nodes:
        if node.op == "output":
            graph.output(torch.fx.node.map_arg(node.args[0], copies.__getitem__))
            graph.output_node().meta = dict(node.meta)
            continue
        if node.op not in ("placeholder", "get_attr", "call_function"):
            raise UnsupportedModelError(f"the graph calls {node.target}, which is not an operation")
        meta = getattr(gm, node.target) if node.op == "get_attr" else node.meta.get("val")
        value = traced.static(meta)
        if isinstance(value, int | float):
            copies[node] = value
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = {**node.meta, "val": value}
        if node.op == "placeholder":
            if isinstance(copies[node], torch.fx.Node):
                copies[node].meta["position"] = position
            position += 1
    return Uncompiled(gm, graph)


class _Static:
    """Traced values at sizes: most are alike, and each is made once."""

    def __init__(self, sizes: Mapping[Any, int]) -> None:
        self._sizes = sizes
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._mode.cache_enabled = False  # torch's cache of fake results has no bound
        self._numbers: dict[Any, Any] = {}
        self._tensors: dict[Any, torch.Tensor] = {}

    def static(self, meta: Any) -> Any:
        """Give a traced value for the sizes: fake tensors of those, and numbers."""
        if isinstance(meta, list | tuple):
            return type(meta)(self.static(one) for one in meta)
        if not isinstance(meta, torch.Tensor):
            return self._number(meta)
        shape = tuple(self._number(size) for size in meta.shape)
        strides = tuple(self._number(stride) for stride in meta.stride())
        key = (shape, strides, meta.dtype, meta.device)
        if key not in self._tensors:
            with self._mode:
                self._tensors[key] = torch.empty_strided(shape, strides, dtype=meta.dtype, device=meta.device)
        return self._tensors[key]

    def _number(self, value: Any) -> Any:
        if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return value
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
        key = (kind, value.node.expr)
        if key not in self._numbers:
            self._numbers[key] = kind(value.node.expr.xreplace(self._sizes))
        return self._numbers[key]


def computed() -> Any:
    """Stand for what a graph computes, where only its type matters."""
    raise AssertionError("this graph describes an interface, and cannot run")


def interface_of(
    gm: torch.fx.GraphModule, is_needed: Callable[[torch.fx.Node], bool]
) -> torch.fx.GraphModule:
    """Leave out of a traced graph what its interface does not need.

    `is_needed` says whether an operation stays; of others that something reads, the type stays.
    """
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}

    def copy(node: torch.fx.Node) -> torch.fx.Node:
        if node not in copies:
            copies[node] = graph.create_node("call_function", computed, name=node.name)
            copies[node].meta = dict(node.meta)
        return copies[node]

    for node in gm.graph.nodes:
        if node.op != "call_function" or is_needed(node):
            copies[node] = graph.node_copy(node, copy)
            copies[node].meta = dict(node.meta)
    return Uncompiled(gm, graph)
