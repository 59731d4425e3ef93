"""Origin of each operation of a traced step: its module, and whether it is part of the gradient.

Hooks note the module that runs. Every autograd node born meanwhile belongs to it, so that the
backward pass names the module whose gradient it computes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.fx.traceback as fx_traceback
from torch.utils._pytree import tree_leaves

from campo_onnx.ir.walk import Walk

_META = "custom"  # the tracer copies this entry of the current metadata to the nodes it makes
_KEY = "campo_onnx.origin"


class Origin(NamedTuple):
    """Origin of an operation: module, pass, and the line of the user's code."""

    scope: str
    is_gradient: bool = False
    place: str = ""

    @property
    def label(self) -> str:
        """The first part of node names."""
        return "/".join(part for part in (self.scope, "grad" if self.is_gradient else "") if part)


def set_origin(scope: str, *, is_gradient: bool = False) -> None:
    """Say where the operations traced from here on come from."""
    fx_traceback.current_meta[_META] = {_KEY: Origin(scope, is_gradient)}


def set_place(place: str) -> None:
    """Say which line of the user's code the operations traced from here on come from."""
    if place and fx_traceback.has_preserved_node_meta():
        fx_traceback.current_meta[_META] = {_KEY: current_origin()._replace(place=place)}


def mark(node: torch.fx.Node, origin: Origin) -> None:
    """Say where an operation comes from that was traced elsewhere."""
    node.meta[_META] = {**(node.meta.get(_META) or {}), _KEY: origin}


def current_origin() -> Origin:
    """Say where the operation being traced comes from."""
    return _origin(fx_traceback.current_meta)


def origin_of(node: torch.fx.Node) -> Origin:
    """Say where a traced operation comes from."""
    return _origin(node.meta)


def _origin(meta: Mapping[str, Any]) -> Origin:
    origin: Origin = (meta.get(_META) or {}).get(_KEY, Origin(""))
    return origin


@contextmanager
def recorded_origins(module: torch.nn.Module) -> Iterator[Callable[[Any, str], None]]:
    """Record origins while the hooks on `module` and its children are in place.

    ``claim(outputs, scope)`` says that all that led to `outputs` and belongs to nobody yet belongs to
    `scope`.
    """
    running = [""]
    claimed: set[Any] = set()

    def claim(outputs: Any, scope: str) -> None:
        walk = Walk(leaf.grad_fn for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor))
        for node in walk:
            if node is None or node in claimed or node.name().endswith("AccumulateGrad"):
                continue
            claimed.add(node)
            node.register_prehook(lambda *_: set_origin(scope, is_gradient=True))
            walk.add(before for before, _ in node.next_functions)

    def enter(scope: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            running.append(scope)
            set_origin(scope)

        return hook

    def leave(scope: str) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any, outputs: Any) -> None:
            claim(outputs, scope)
            running.pop()
            set_origin(running[-1])

        return hook

    hooks = []
    with fx_traceback.preserve_node_meta():
        try:
            for scope, child in module.named_modules():
                hooks.append(child.register_forward_pre_hook(enter(scope)))
                hooks.append(child.register_forward_hook(leave(scope)))
            yield claim
        finally:
            for hook in hooks:
                hook.remove()
