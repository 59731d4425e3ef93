"""Random training programs through the backend, held against eager from the same weights in every step.

    python tests/torch_compile/loops.py OUT.jsonl [--count N] [--limit-s S]

A program has a network, an optimizer, and steps of changing batches and lengths: accumulation, frozen parts,
hooks, clipping, evaluation in between, saved and loaded states, exceptions in the middle. Goes on where
OUT.jsonl ends.
"""

import argparse
import copy
import json
import random
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from against_eager import STRICT
from torch import nn

from campo_onnx.integrations.torch_compile import campo_onnx

ROUNDING, LIMIT = 3e-5, 3.0
STEPS = 5
WIDTH, CLASSES = 16, 5


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.norm = inner, nn.LayerNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.inner(self.norm(x))


class Mixing(nn.Module):
    """Attention over the length."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Along(nn.Module):
    """A convolution along the length, with batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Any) -> Any:
        return F.relu(self.norm(self.conv(x.transpose(1, 2)))).transpose(1, 2)


class Network(nn.Module):
    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.words = nn.Embedding(20, WIDTH)
        parts: list[Callable[[], nn.Module]] = [
            lambda: Residual(nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))),
            lambda: Residual(Mixing()),
            lambda: Residual(Along()),
            lambda: Residual(nn.Dropout(0.2)),
        ]
        self.layers = nn.ModuleList(draw.choice(parts)() for _ in range(draw.randint(1, 3)))
        self.pool = draw.choice(["mean", "amax", "last"])
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        x = x[:, -1] if self.pool == "last" else getattr(x, self.pool)(1)
        return self.head(x)


class InTheMiddleError(Exception):
    """Raised by a hook of a program."""


def difference(seed: int) -> str:
    """Run a program; say where compiled and eager differ, or nothing."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    torch._dynamo.reset()
    module = Network(draw)
    eager = copy.deepcopy(module)
    run = torch.compile(module, backend=campo_onnx, options=STRICT)
    kind = draw.choice([torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
    optimizer = kind(module.parameters(), lr=1e-2)
    shapes = [(draw.randint(1, 6), draw.randint(2, 9)) for _ in range(draw.randint(1, 3))]
    saved: Any = None
    for step in range(STEPS):
        action = draw.choice(
            ["", "accumulate", "freeze", "hook", "clip", "evaluate", "save", "load", "raise"]
        )
        batches = [_batch(draw.choice(shapes)) for _ in range(2 if action == "accumulate" else 1)]
        if action == "freeze":
            draw.choice(list(module.layers)).requires_grad_(draw.random() < 0.3)
        if action == "raise":
            _raise_once(module, run, batches[0])
        if action == "load" and saved is not None:
            module.load_state_dict(saved[0])
            optimizer.load_state_dict(copy.deepcopy(saved[1]))
        eager.load_state_dict(module.state_dict())
        for own, p in zip(eager.parameters(), module.parameters(), strict=True):
            own.requires_grad_(p.requires_grad)
        if action == "evaluate" and (found := _evaluated(module, eager, run, batches[0])):
            return f"step {step}, evaluation: {found}"
        for call, each in ((run, module), (eager, eager)):
            torch.manual_seed(step)
            _gradients(call, each, batches, action)
        if found := _differ(module, eager):
            exact = copy.deepcopy(eager).double()
            torch.manual_seed(step)
            _gradients(exact, exact, batches, action)
            if not _is_as_exact(module, eager, exact):
                return f"step {step} {action!r}: {found}"
        optimizer.step()
        if action == "save":
            saved = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
    return ""


def _gradients(call: Any, module: Any, batches: list[Any], action: str) -> None:
    module.zero_grad(set_to_none=True)
    hooks = [module.head.weight.register_hook(lambda g: 2 * g)] if action == "hook" else []
    for x, y in batches:
        (F.cross_entropy(call(x), y) / len(batches)).backward()
    for hook in hooks:
        hook.remove()
    if action == "clip":
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)


def _batch(shape: tuple[int, int]) -> tuple[Any, Any]:
    return torch.randint(0, 20, shape), torch.randint(0, CLASSES, shape[:1])


def _raise_once(module: Any, run: Any, batch: Any) -> None:
    """Leave a step in the middle of its backward pass, by an exception of the user's own."""

    def fail(_: Any) -> None:
        raise InTheMiddleError

    hook = module.words.weight.register_hook(fail)
    try:
        F.cross_entropy(run(batch[0]), batch[1]).backward()
    except InTheMiddleError:
        pass
    else:
        raise AssertionError("the hook was not called")
    finally:
        hook.remove()


def _evaluated(module: Any, eager: Any, run: Any, batch: Any) -> str:
    module.eval()
    eager.eval()
    with torch.no_grad():
        one, other = run(batch[0]), eager(batch[0])
    module.train()
    eager.train()
    return "" if torch.allclose(one, other, rtol=1e-4, atol=1e-5) else "another output"


def _differ(module: Any, eager: Any) -> str:
    exact = dict(eager.named_parameters())
    largest = max((float(p.grad.norm()) for p in exact.values() if p.grad is not None), default=0.0)
    for name, p in module.named_parameters():
        if (p.grad is None) != (exact[name].grad is None):
            return f"{name} has a gradient in one of them"
        if p.grad is None:
            continue
        error = float((p.grad - exact[name].grad).norm())
        if not error <= ROUNDING * max(float(exact[name].grad.norm()), 1e-2 * largest):
            return f"the gradient of {name} is {error:.3g} off"
    buffers = zip(module.buffers(), eager.buffers(), strict=True)
    return "" if all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in buffers) else "another buffer"


def _is_as_exact(module: Any, eager: Any, exact: Any) -> bool:
    """Whether gradients are at most three times as far from FP64 as eager's, which cancel where these do."""
    named = [dict(each.named_parameters()) for each in (module, eager, exact)]
    triples = [[each[name].grad for each in named] for name in named[0]]
    if any((g is None) != (triple[0] is None) for triple in triples for g in triple):
        return False
    return all(
        float((ours - true).norm()) <= LIMIT * float((theirs - true).norm())
        for ours, theirs, true in triples
        if ours is not None and not torch.allclose(ours.double(), true, rtol=ROUNDING, atol=0)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--limit-s", type=float, default=1e9)
    options = parser.parse_args()
    done = len(options.out.read_text().splitlines()) if options.out.exists() else 0
    ends = time.monotonic() + options.limit_s
    warnings.simplefilter("ignore")
    with options.out.open("a", encoding="utf-8") as file:
        for seed in range(done, options.count):
            if time.monotonic() > ends:
                sys.exit("stopped by --limit-s; the same command goes on")
            try:
                found = difference(seed)
            except Exception as error:  # one program must not end the campaign
                found = f"{type(error).__name__}: {str(error)[:200]}"
            file.write(json.dumps({"seed": seed, "difference": found}) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
