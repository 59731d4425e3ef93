"""Every operation of torch's own list through the backend with ``fallback="torch"``, beside aot_eager.

    python tests/torch_compile/opinfo.py OUT.jsonl [--only NAME,...] [--limit-s S]

Goes on where OUT.jsonl ends. A line says "same", "refused by both", "random", or what is different.
"""

import argparse
import json
import random
import sys
import time
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

# Torch's own tests want a package beside torch, of which the list of operations needs nothing.
sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]

from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from campo_onnx.integrations.torch_compile import campo_onnx

SAMPLES = 2
OPTIONS = {"fallback": "torch", "runtime": "onnxruntime", "plans": None}


def operations() -> dict[str, Any]:
    """Operations on FP32 tensors on a CPU, by name and variant."""
    chosen = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu")]
    random.Random(0).shuffle(chosen)  # what a campaign has done so far is a sample
    return {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in chosen}


def outcome(op: Any) -> str:
    """Run an operation's first samples both ways, forward and backward."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in enumerate(samples(op)):
            results = [result(op, sample, backend) for backend in ("eager", "eager", "aot_eager", "ours")]
            first, again, theirs, ours = results
            if not same(first, again):
                return "random"
            if isinstance(theirs, Exception):
                continue
            if isinstance(ours, Exception):
                return f"sample {number}: {type(ours).__name__}: {str(ours)[:200]}"
            if not same(theirs, ours):
                return f"sample {number}: {difference(theirs, ours)}"
    return "same"


def samples(op: Any) -> Iterator[Any]:
    torch.manual_seed(0)
    inputs = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
    yield from (sample for sample, _ in zip(inputs, range(SAMPLES), strict=False))


def result(op: Any, sample: Any, backend: str) -> list[Any] | Exception:
    """Give outputs and gradients as a list of tensors and others, or the exception."""
    leaves, form = tree_flatten((sample.input, sample.args, sample.kwargs))
    leaves = [copied(leaf) for leaf in leaves]

    def call(*leaves: Any) -> Any:
        x, args, kwargs = tree_unflatten(list(leaves), form)
        # A function of it: no argument is changed in place that is a leaf of autograd.
        return op(x, *args, **kwargs)

    torch._dynamo.reset()
    torch.manual_seed(0)
    try:
        outputs = tree_leaves(compiled(call, backend)(*leaves))
        trained = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        losses = [weighted(y) for y in outputs if isinstance(y, torch.Tensor) and y.requires_grad]
        gradients = torch.autograd.grad(sum(losses), trained, allow_unused=True) if losses else ()
        return [y.detach() if isinstance(y, torch.Tensor) else y for y in (*outputs, *gradients)]
    except Exception as error:
        return error


def copied(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def compiled(call: Callable[..., Any], backend: str) -> Callable[..., Any]:
    if backend == "eager":
        return call
    if backend == "ours":
        return torch.compile(call, backend=campo_onnx, options=OPTIONS)
    return torch.compile(call, backend=backend)


def weighted(y: Any) -> Any:
    y = torch.view_as_real(y) if y.is_complex() else y
    weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)
    return (y.to_dense() * weights).sum()


def same(one: Any, other: Any) -> bool:
    return isinstance(one, Exception) == isinstance(other, Exception) and (
        isinstance(one, Exception) or not difference(one, other)
    )


def difference(one: list[Any], other: list[Any]) -> str:
    if len(one) != len(other):
        return "another number of results"
    for place, (a, b) in enumerate(zip(one, other, strict=True)):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if type(a) is not type(b) or (a != b and a == a):
                return f"result {place}: {a!r} and {b!r}"
            continue
        try:
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5, equal_nan=True, check_stride=False)
        except AssertionError as error:
            return f"result {place}: {' '.join(str(error).split())[:300]}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--limit-s", type=float, default=1e9)
    options = parser.parse_args()
    done = (
        {json.loads(line)["op"] for line in options.out.read_text().splitlines()}
        if options.out.exists()
        else set()
    )
    ends = time.monotonic() + options.limit_s
    with options.out.open("a", encoding="utf-8") as file:
        for name, op in operations().items():
            if name in done or (options.only and name not in options.only.split(",")):
                continue
            if time.monotonic() > ends:
                sys.exit("stopped by --limit-s; the same command goes on")
            file.write(json.dumps({"op": name, "outcome": outcome(op)}) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
