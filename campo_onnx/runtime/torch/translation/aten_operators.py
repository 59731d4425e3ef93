"""Operators that ONNX Runtime hands back to torch: an attribute names them, inputs are their arguments."""

from typing import Any

import numpy as np
import torch

from campo_onnx.runtime.torch.translation.node import EVERY, Node, Row
from campo_onnx.runtime.torch.translation.values import is_traced, to_tensor

OPERATORS = frozenset(
    {
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool2d_backward",
        "adaptive_avg_pool2d",
        "embedding",
        "embedding_backward",
        "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward",
    }
)
"""Those that ORTModule writes; any other one is refused."""


def called(node: Node, *inputs: Any) -> Any:
    """Call the operator of torch's that an attribute names."""
    name = node.get("operator")
    if name not in OPERATORS:
        raise node.refusal(f"its operator {name!r} is not among those that are translated")
    overload = getattr(getattr(torch.ops.aten, name), node.get("overload_name") or "default")
    arguments = overload._schema.arguments
    return overload(
        *(_argument(node, value, str(a.type)) for value, a in zip(inputs, arguments, strict=False))
    )


def _argument(node: Node, value: Any, kind: str) -> Any:
    """Give an argument the type that an operator takes."""
    if kind == "Tensor" or value is None:
        return to_tensor(value, node.device) if isinstance(value, np.ndarray) else value
    if isinstance(value, torch.Tensor):
        if is_traced(value):
            raise node.refusal("an argument that is no tensor to torch is computed from data")
        value = value.cpu().numpy()
    if kind.startswith("List"):
        return value.reshape(-1).tolist()
    return bool(value.item()) if kind == "bool" else value.item()


ROWS = {"org.pytorch.aten:ATen": Row(called, either=EVERY)}
