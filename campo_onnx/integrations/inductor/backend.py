"""A graph that torch's own compiler runs, with a precision plan as a pass in it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import OpLists


def compiled_by_torch(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    precision: str | Precision | None,
    lists: str | OpLists | None,
    keep_fp32: Sequence[str],
) -> Callable[..., Any]:
    """Compile a captured graph with Inductor; BF16 is the low precision unless one is named."""
    # Inductor is imported when it is asked for: it takes as long as torch itself.
    from torch._inductor.compile_fx import compile_fx

    from campo_onnx.integrations.inductor.options import inductor_pass

    planned = inductor_pass(precision or Precision.BF16, lists=lists, keep_fp32=keep_fp32)
    call: Any = compile_fx(gm, example_inputs, config_patches={"joint_custom_pre_pass": planned})
    return call
