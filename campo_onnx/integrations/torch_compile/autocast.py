"""Graphs traced under autocast: its casts are taken out, since the plan chooses the precision of each node.

Arguments and results keep their types. What autocast allowed is the low precision of the plan.
"""

from typing import Any

import torch
from torch.utils._pytree import tree_map, tree_map_only

from campo_onnx.ops.precision import Precision

aten = torch.ops.aten

LOW = {torch.float16: Precision.FP16, torch.bfloat16: Precision.BF16}


def autocast_precision(gm: torch.fx.GraphModule) -> Precision | None:
    """Give the low precision that autocast allows in a captured graph, around it or within; None without."""
    devices = [d for d in ("cuda", "cpu") if torch.is_autocast_enabled(d)]
    types = [torch.get_autocast_dtype(device) for device in devices]
    types += [n.args[1] or torch.get_autocast_dtype(n.args[0]) for n in gm.graph.nodes if _enters(n)]
    return next((LOW[dtype] for dtype in types if dtype in LOW), None)


def _enters(node: torch.fx.Node) -> bool:
    return node.target is torch.amp.autocast_mode._enter_autocast and bool(node.args[2])


def without_casts(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Compute in FP32 whatever a graph computes in low precision; the graph is changed."""
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
