"""Whether a step does the same when it runs again, and is refused where it does not.

A graph is one run of the step, for ever. What forward keeps outside the module (a global name, an object,
a closure, a cache) or draws from where no graph can (the time, the system's random numbers) shows as soon
as it runs twice. State that training changes shows as a constant of the graph, or as one that is written.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from campo_onnx.errors import UnsupportedModelError, is_foreign
from campo_onnx.export.torch.origin import current_origin, origin_of, place_of_error
from campo_onnx.step import naming as step_naming

_META = torch.device("meta")

_Done = tuple[Any, str, str]
"""An operation, its operands as text, and where in the user's code it is called."""


class Recorded(TorchDispatchMode):
    """While active, operations are noted with their operands: tensors by number, constants by value."""

    supports_higher_order_operators = True

    def __init__(self, drawn: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.done: list[_Done] = []
        self._seen: dict[int, tuple[int, torch.Tensor]] = {}  # kept alive, so that no other gets its id
        for tensor in drawn:
            self._number(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") == _META:  # where torch itself takes a fake tensor's device for its own
            kwargs = {**kwargs, "device": torch.device("cpu")}
        operands = tree_map_only(torch.Tensor, self._operand, (args, kwargs))
        result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._number(leaf)
        self.done.append((func, repr(operands), current_origin().place))
        return result

    def _number(self, tensor: torch.Tensor) -> int:
        return self._seen.setdefault(id(tensor), (len(self._seen), tensor))[0]

    def _operand(self, tensor: torch.Tensor) -> Any:
        if isinstance(tensor, FakeTensor) or id(tensor) in self._seen or tensor.is_meta:
            return self._number(tensor), tuple(tensor.shape)
        with _disable_current_modes():
            data = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(tensor.dtype), tuple(tensor.shape), hash(data)


def refuse_another_run(first: Recorded, run_again: Callable[[], Recorded]) -> None:
    """Refuse a step that does something else the second time."""
    try:
        place = difference(first, run_again())
    except Exception as error:  # a step that fails the second time is another one
        if is_foreign(error):
            raise
        place = place_of_error(error)
    if place is not None:
        _refuse(place)


def difference(one: Recorded, other: Recorded) -> str | None:
    """Give the place in the user's code where a run begins to differ from another; None where it does not."""
    for first, second in zip(one.done, other.done, strict=False):
        if first[:2] != second[:2]:
            return second[2]
    return None if len(one.done) == len(other.done) else ""


def _refuse(place: str) -> None:
    raise UnsupportedModelError(
        f"{place or 'the step'} does something different when the step runs again",
        why="what it keeps outside the module, or draws, would stay in the graph as it was this once",
        remedy="Keep it in a buffer, and draw with torch.rand. A cache may be filled by one run before the "
        "export; one that this export has filled holds no data: clear it.",
    )


def refuse_constant_state(
    traced: torch.fx.GraphModule, inputs: Mapping[str, Any], module: torch.nn.Module
) -> None:
    """Refuse a step that reads a weight as a constant, or writes into a constant or a parameter."""
    buffers = {id(buffer) for buffer in module.buffers()}
    names = iter(inputs)
    roots: dict[torch.fx.Node, str] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            name = next(names)
            if step_naming.is_parameter(name):
                roots[node] = f"the parameter {step_naming.stored(name)!r}"
        elif node.op == "get_attr":
            tensor = getattr(traced, node.target)
            if isinstance(tensor, torch.nn.Parameter) or id(tensor) in buffers:
                raise UnsupportedModelError(
                    f"a parameter or buffer of shape {tuple(tensor.shape)} is read that is not the module's",
                    why="it would become a constant in the graph, which training never changes",
                    remedy="Register it: modules of a list in nn.ModuleList, parameters in nn.ParameterList.",
                )
            roots[node] = f"a tensor of shape {tuple(tensor.shape)} that is not a buffer"
        elif node.op == "call_function":
            _refuse_writing(node, roots)


def _refuse_writing(node: torch.fx.Node, roots: dict[torch.fx.Node, str]) -> None:
    """Follow views of what `roots` has, and refuse an operation that writes into one."""
    if not isinstance(node.target, torch._ops.OpOverload):
        for operand in node.all_input_nodes:  # one of several results
            if operand in roots:
                roots[node] = roots[operand]
        return
    arguments = zip(node.target._schema.arguments, node.args, strict=False)
    named = ((a, node.kwargs[a.name]) for a in node.target._schema.arguments if a.name in node.kwargs)
    for argument, value in (*arguments, *named):
        for operand in value if isinstance(value, tuple | list) else (value,):
            if argument.alias_info is None or not isinstance(operand, torch.fx.Node) or operand not in roots:
                continue
            if argument.alias_info.is_write:
                place = origin_of(node).place or str(node.target)
                raise UnsupportedModelError(
                    f"{place} writes into {roots[operand]}",
                    why="a graph would lose that: only buffers keep what forward writes",
                    remedy="Register the tensor with register_buffer, or change parameters between steps.",
                )
            roots[node] = roots[operand]
