"""Graphs traced under autocast: its casts are taken out, since the plan chooses the precision of each node.

Arguments and results keep their types. What autocast allowed is the low precision of the plan. What the
user's code asks to have in FP32 stays FP32, with or without autocast around.
"""

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from campo_onnx.export.torch.fp32_demands import casts_to_fp32
from campo_onnx.export.torch.origin import mark, origin_of
from campo_onnx.ops.precision import Precision

aten = torch.ops.aten

LOW = {torch.float16: Precision.FP16, torch.bfloat16: Precision.BF16}


def autocast_precision(gm: torch.fx.GraphModule) -> Precision | None:
    """Give the low precision that autocast allows in a captured graph, around it or within; None without."""
    devices = [d for d in ("cuda", "cpu") if torch.is_autocast_enabled(d)]
    types = [torch.get_autocast_dtype(device) for device in devices]
    types += [n.args[1] or torch.get_autocast_dtype(n.args[0]) for n in gm.graph.nodes if _enters(n)]
    return next((LOW[dtype] for dtype in types if dtype in LOW), None)


_ENTER, _EXIT = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast


def _enters(node: torch.fx.Node) -> bool:
    return node.target is _ENTER and bool(node.args[2])


def mark_demands(gm: torch.fx.GraphModule, autocast: bool | None) -> None:
    """Mark what a captured graph is asked to compute in FP32, which AOTAutograd hands on to gradients.

    `autocast` is the state around the graph: see :mod:`campo_onnx.export.torch.fp32_demands`.
    """
    states, cast = [autocast], set[torch.fx.Node]()
    for node in gm.graph.nodes:
        if node.target is _ENTER:
            states.append(bool(node.args[2]))
        elif node.target is _EXIT:
            states.pop()
        for part in _bodies(gm, node):
            mark_demands(part, states[-1])
        if states[-1] and _gives_fp32(node) and (_is_cast(node) or cast & set(node.all_input_nodes)):
            cast.add(node)
        if states[-1] is False or node in cast:
            mark(node, origin_of(node)._replace(in_fp32=True))


def _bodies(gm: torch.fx.GraphModule, node: torch.fx.Node) -> list[torch.fx.GraphModule]:
    """Give the graphs that a call of a higher-order operation runs."""
    read = [n.target for n in node.all_input_nodes if n.op == "get_attr" and node.op == "call_function"]
    modules = dict(gm.named_modules())
    return [modules[name] for name in read if isinstance(modules.get(name), torch.fx.GraphModule)]


def _gives_fp32(node: torch.fx.Node) -> bool:
    values = tree_leaves(node.meta.get("example_value"))
    return any(isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in values)


def _is_cast(node: torch.fx.Node) -> bool:
    values = (read.meta.get("example_value") for read in node.all_input_nodes)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_of_fractions = any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in values)
    return node.op.startswith("call") and is_of_fractions and casts_to_fp32(name, node.args, node.kwargs)


def without_casts(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Compute in FP32 whatever a graph computes in low precision; the graph is changed."""
    _unmark_low(gm.graph)
    output = gm.graph.output_node()
    results = {n: n.meta["val"].dtype for n in output.all_input_nodes if _is_low(n.meta.get("val"))}
    for node in list(gm.graph.nodes):
        if node.op == "call_function":
            _widen(node)
        elif node.op in ("placeholder", "get_attr") and _is_low(node.meta.get("val")):
            with gm.graph.inserting_after(node):
                wide = _cast(gm.graph, node, torch.float32)
            node.replace_all_uses_with(wide, delete_user_cb=lambda user, own=wide: user is not own)
    with gm.graph.inserting_before(output):
        for node, dtype in results.items():
            wide = next((u for u in node.users if u.op != "output" and node.op != "call_function"), node)
            output.replace_input_with(wide, _cast(gm.graph, wide, dtype))
    gm.recompile()
    return gm


def _unmark_low(graph: torch.fx.Graph) -> None:
    """Take what is low in a part that asks for FP32 as the user's code has it: no cast to FP32 is there.

    AOTAutograd traces gradients under the autocast around the model, whatever that of their operation was.
    """
    low = {n for n in graph.nodes if any(map(_is_low, tree_leaves(n.meta.get("val"))))}
    computed = {
        node
        for node in graph.nodes
        if node in low or (node.target is not aten._to_copy.default and low & set(node.all_input_nodes))
    }
    numbers = {n.meta.get("seq_nr") for n in computed if n.meta.get("partitioner_tag") != "is_backward"}
    for node in graph.nodes:
        is_gradient = node.meta.get("partitioner_tag") == "is_backward"
        is_low = node.meta.get("seq_nr") in numbers if is_gradient else node in computed
        if is_low and origin_of(node).in_fp32:
            mark(node, origin_of(node)._replace(in_fp32=False))


def _is_low(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in LOW


def _cast(graph: torch.fx.Graph, node: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
    cast = graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
    cast.meta = {**node.meta, "val": _like(node.meta["val"], dtype)}
    return cast


def _like(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    with value.fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device=value.device)


def _widen(node: torch.fx.Node) -> None:
    def wide(argument: Any) -> Any:
        return torch.float32 if isinstance(argument, torch.dtype) and argument in LOW else argument

    node.args, node.kwargs = tree_map(wide, (node.args, node.kwargs))
    if node.target in (aten._softmax.default, aten._log_softmax.default):
        node.args = (*node.args[:2], False)  # half_to_float
    value = node.meta.get("val")
    node.meta["val"] = tree_map_only(
        torch.Tensor, lambda v: _like(v, torch.float32) if _is_low(v) else v, value
    )
