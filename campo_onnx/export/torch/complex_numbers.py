"""Refusing complex tensors as what they are, before the operations on them."""

from collections.abc import Sequence
from typing import Any

import torch

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.export.torch.origin import origin_of


def refuse_complex(traced: torch.fx.GraphModule, inputs: Sequence[str]) -> None:
    """Refuse a step in which a tensor is complex.

    Parameters
    ----------
    traced
        A flat graph; one placeholder per input.
    inputs
        Their names.

    Raises
    ------
    UnsupportedModelError
        For the first such tensor, whose place it says.
    """
    names = iter(inputs)
    for node in traced.graph.nodes:
        name = next(names) if node.op == "placeholder" else ""
        if not _is_complex(node.meta.get("val")):
            continue
        origin = origin_of(node)
        place = origin.place or (f"module {origin.scope!r}" if origin.scope else "the outermost module")
        raise complex_refused(name or f"the result of {node.target} at {place}")


def complex_refused(what: str) -> UnsupportedModelError:
    """Give the error for a complex tensor."""
    return UnsupportedModelError(
        f"{what} is complex",
        why="ONNX Runtime has no operators for complex numbers",
        remedy="Compute with real and imaginary parts: a rotary embedding with cosine and sine.",
    )


def _is_complex(meta: Any) -> bool:
    metas = meta if isinstance(meta, tuple | list) else [meta]
    return any(isinstance(each, torch.Tensor) and each.is_complex() for each in metas)
