"""Settings under which AOTAutograd traces: operations to keep whole, and traps to avoid."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch._functorch.config
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from campo_onnx.export.torch.decompositions import FUNCTIONS, OPERATIONS
from campo_onnx.export.torch.scalars import as_rows
from campo_onnx.export.torch.translate import TRANSLATIONS

OPSET = 20

_NO_GRADIENT = ("flash_attention", "efficient_attention", "cudnn_attention")


@cache  # it asks a thousand operations for their names
def decompositions() -> Mapping[Any, Any]:
    """Give what is taken apart: the Core ATen set's operations, where we have no translation.

    The parts of fused attention are not: they give its result without what its gradient reads, and gradients
    would be wrong by any factor, without an error.
    """
    table = {
        operation: rule
        for operation, rule in {**core_aten_decompositions(), **OPERATIONS}.items()
        if operation not in TRANSLATIONS and not any(name in str(operation) for name in _NO_GRADIENT)
    }
    return as_rows(table)


class _TakenApart(TorchFunctionMode):
    """While active, functions are traced in parts whose gradients have translations."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return FUNCTIONS.get(func, func)(*args, **(kwargs or {}))


@contextmanager
def _in_parts() -> Iterator[None]:
    """Let attention be traced as products and a softmax, and backward passes run twice if told to.

    oneDNN's recurrent layers are single operations without parts; off, they are unrolled.
    """
    without_onednn = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None)
    twice = torch._functorch.config.patch(donated_buffer=False)
    with sdpa_kernel(SDPBackend.MATH), twice, without_onednn, _TakenApart():
        yield


def traced(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    partition: Callable[..., Any],
    compiler: Callable[..., Any],
    inference_compiler: Callable[..., Any],
) -> Callable[..., Any]:
    """Let AOTAutograd trace a graph, and make of it what we compile."""

    def forward_compiler(half: torch.fx.GraphModule, arguments: Sequence[Any]) -> Callable[..., Any]:
        # Without donated buffers there is no list of them, which a later backward pass takes for a full one.
        TracingContext.get().fw_metadata.bw_donated_idxs = []
        return compiler(half, arguments)

    aot = aot_autograd(
        fw_compiler=forward_compiler,
        bw_compiler=compiler,
        inference_compiler=inference_compiler,
        partition_fn=partition,
        decompositions=decompositions(),
    )
    # AOTAutograd traces now, so the choice of kernels now is what ends up in its graphs.
    with _in_parts():
        return aot(gm, inputs)


def boxed(call: Callable[[list[Any]], Sequence[Any]]) -> Callable[[list[Any]], Sequence[Any]]:
    """Mark a function that takes its arguments as a list, and may empty it, as AOTAutograd wants it."""

    def run(arguments: list[Any]) -> Sequence[Any]:
        return call(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
