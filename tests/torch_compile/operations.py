"""Every operation of torch's own list, compiled with the fallback, against torch's tracing alone (aot_eager).

    PYTHONPATH=. python tests/torch_compile/operations.py [FIRST LAST]

prints each that fails or gives other results or gradients. The list needs the package expecttest.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from campo_onnx.integrations.torch_compile import campo_onnx

UNDEFINED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Operations whose results hold whatever the memory held."""


def copied(x: Any) -> Any:
    return x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x


def outcome(operation: Callable[..., Any], sample: Any, backend: Any) -> list[Any]:
    """Give what an operation returns, and the gradients of what it takes."""
    torch._dynamo.reset()
    args = tree_map(copied, (sample.input, *sample.args))
    kwargs = tree_map(copied, sample.kwargs)
    torch.manual_seed(0)
    results = torch.compile(lambda args, kwargs: operation(*args, **kwargs), backend=backend)(args, kwargs)
    made = [t for t in tree_leaves(results) if isinstance(t, torch.Tensor)]
    read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
    slopes = [t for t in made if t.requires_grad]
    if not slopes:
        return made
    weights = [torch.linspace(-1, 1, t.numel()).reshape(t.shape).to(t.dtype) for t in slopes]
    gradients = torch.autograd.grad(slopes, read, weights, allow_unused=True)
    return [*(t.detach() for t in made), *gradients]


def differs(ours: Any, theirs: Any) -> bool:
    if theirs is None or ours is None:
        return (ours is None) != (theirs is None)
    if theirs.layout is not torch.strided:
        return False
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return True
    return not torch.allclose(ours, theirs, atol=1e-4, rtol=1e-3, equal_nan=True)


def problems(operation: Any) -> Iterator[str]:
    """Name what goes wrong with the first sample of an operation that torch's tracing takes."""
    if torch.float32 not in operation.dtypes or operation.name in UNDEFINED:
        return
    slopes = torch.float32 in operation.backward_dtypes
    for sample in operation.sample_inputs("cpu", torch.float32, requires_grad=slopes):
        try:
            theirs = outcome(operation, sample, "aot_eager")
        except Exception:  # torch's tracing does not take it
            continue
        try:
            ours = outcome(operation, sample, campo_onnx)
        except Exception as error:
            yield f"{operation.formatted_name} fails: {type(error).__name__}: {error}".partition("\n")[0]
            return
        if len(ours) != len(theirs) or any(map(differs, ours, theirs)):
            yield f"{operation.formatted_name} gives something else"
        return


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for operation in op_db[slice(*(map(int, sys.argv[1:]) if sys.argv[1:] else (None,)))]:
        for problem in problems(operation):
            print(problem, flush=True)
