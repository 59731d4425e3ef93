"""Random training programs through the backend, held against eager from the same weights in every step.

    python tests/torch_compile/loops.py OUT.jsonl [--first SEED] [--count N] [--runtime NAME] [--limit-s S]

A program has a network, an optimizer, and steps of changing batches and lengths: accumulation, frozen parts,
hooks, clipping, evaluation in between, saved and loaded states, replaced weights, exceptions in the middle,
layers that are run again in the backward pass, autocast. Goes on where OUT.jsonl ends.
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
from against_eager import STRICT, distance
from torch import nn
from torch.utils.checkpoint import checkpoint

from campo_onnx.integrations.torch_compile import campo_onnx

ROUNDING, LOW_ROUNDING, LIMIT = 3e-5, 2.0**-8, 3.0
STEPS = 5
WIDTH, WORDS, CLASSES = 16, 20, 5
ACTIONS = (
    *("", "accumulate", "freeze", "hook", "clip", "evaluate", "save", "load", "raise", "wrong index"),
    *("replace", "twice", "together", "still"),
)


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


class Grouped(nn.Module):
    """Group normalization along the length, and a gate in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate = nn.GroupNorm(4, WIDTH), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        return F.silu(self.norm(x.transpose(1, 2))).transpose(1, 2).mul_(self.gate)


class Again(nn.Module):
    """Runs again in the backward pass instead of keeping its activations."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return checkpoint(self.inner, x, use_reentrant=False)


class Counting(nn.Module):
    """A buffer that forward changes, and part of a graph behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(WIDTH))

    def forward(self, x: Any) -> Any:
        if self.training:
            self.average.lerp_(x.detach().mean((0, 1)).to(self.average.dtype), 0.1)
        torch._dynamo.graph_break()
        return x - self.average


class Network(nn.Module):
    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=draw.choice([None, 0]))
        parts: list[Callable[[], nn.Module]] = [
            lambda: Residual(nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))),
            lambda: Residual(Mixing()),
            lambda: Residual(Along()),
            lambda: Residual(nn.Dropout(0.2)),
            lambda: Residual(Grouped()),
            lambda: Again(Residual(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))),
            lambda: Counting(),
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


def difference(seed: int, runtime: str = "onnxruntime") -> str:
    """Run a program; say where compiled and eager differ, or nothing."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    torch._dynamo.reset()
    module = Network(draw)
    eager = copy.deepcopy(module)
    is_low = draw.random() < 0.3
    precision = {"strategy": draw.choice(["optimal", "torch-amp"])} if is_low else {"keep_fp32": [".*"]}
    run = torch.compile(module, backend=campo_onnx, options={**STRICT, **precision, "runtime": runtime})
    kind = draw.choice([torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
    optimizer = kind(module.parameters(), lr=1e-2)
    shapes = [(draw.randint(1, 6), draw.randint(2, 9)) for _ in range(draw.randint(1, 4))]
    saved: Any = None
    for step in range(STEPS):
        action = draw.choice(ACTIONS)
        count = 2 if action in ("accumulate", "together") else 1
        batches = [_batch(draw.choice(shapes)) for _ in range(count)]
        _disturb(action, module, run, batches[0], draw)
        if action == "load" and saved is not None:
            module.load_state_dict(saved[0])
            optimizer.load_state_dict(copy.deepcopy(saved[1]))
        eager.load_state_dict(module.state_dict())
        for own, p in zip(eager.parameters(), module.parameters(), strict=True):
            own.requires_grad_(p.requires_grad)
        exact = copy.deepcopy(eager).double()
        if action == "evaluate" and (fault := _evaluated((module, eager, exact), run, batches[0], is_low)):
            return f"step {step}, evaluation: {fault}"
        for call, each in ((run, module), (eager, eager)):
            torch.manual_seed(step)
            with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
                _gradients(call, each, batches, action)
        if is_low or (fault := _differ(module, eager)):
            torch.manual_seed(step)
            _gradients(exact, exact, batches, action)
            if is_low:
                fault = _further(module, eager, exact)
            elif _is_as_exact(module, eager, exact):
                fault = ""
            if fault:
                return f"step {step} {action!r}{', autocast' * is_low}: {fault}"
        optimizer.step()
        if action == "save":
            saved = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
    return ""


def _disturb(action: str, module: Any, run: Any, batch: Any, draw: random.Random) -> None:
    if action == "freeze":
        draw.choice(list(module.layers)).requires_grad_(draw.random() < 0.3)
    if action == "replace":
        module.head.weight.data = module.head.weight.data * 0.9
    if action == "raise":
        _raise_once(module, run, batch)
    if action == "wrong index":
        _index_once(run, batch, draw.choice([-1, WORDS]))


def _gradients(call: Any, module: Any, batches: list[Any], action: str) -> None:
    module.zero_grad(set_to_none=True)
    hooks = [module.head.weight.register_hook(lambda g: 2 * g)] if action == "hook" else []
    module.layers[0].train(action != "still")
    if action == "together":
        one, other = (call(x).float().mean(0) for x, _ in batches)
        (one - other).square().sum().backward()
    else:
        for x, y in batches:
            loss = F.cross_entropy(call(x), y) / len(batches)
            loss.backward(retain_graph=action == "twice")
            if action == "twice":
                loss.backward()
    module.layers[0].train()
    for hook in hooks:
        hook.remove()
    if action == "clip":
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)


def _batch(shape: tuple[int, int]) -> tuple[Any, Any]:
    return torch.randint(0, WORDS, shape), torch.randint(0, CLASSES, shape[:1])


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


def _index_once(run: Any, batch: Any, wrong: int) -> None:
    """Ask for a word that there is none of, as a mistake in the data does."""
    ids = batch[0].clone()
    ids[-1, -1] = wrong
    try:
        run(ids)
    except IndexError:
        return
    raise AssertionError(f"index {wrong} was taken")


def _evaluated(modules: Any, run: Any, batch: Any, is_low: bool) -> str:
    _, eager, exact = modules
    for each in modules:
        each.eval()
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
            one, other = run(batch[0]), eager(batch[0])
        true = exact(batch[0])
    for each in modules:
        each.train()
    if is_low:
        return "" if _is_near([one], [other], [true]) else "an output further from FP64 than eager's"
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
        if not error <= _allowed(exact[name].grad, largest):
            return f"the gradient of {name} is {error:.3g} off"
    buffers = zip(module.buffers(), eager.buffers(), strict=True)
    return "" if all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in buffers) else "another buffer"


def _allowed(gradient: Any, largest: float) -> float:
    """Give how much rounding may move a gradient, beside one of which the norm is `largest`."""
    return ROUNDING * max(float(gradient.norm()), 1e-2 * largest)


def _is_as_exact(module: Any, eager: Any, exact: Any) -> bool:
    """Whether gradients are at most three times as far from FP64 as eager's, which cancel where these do."""
    named = [dict(each.named_parameters()) for each in (module, eager, exact)]
    triples = [[each[name].grad for each in named] for name in named[0]]
    if any((g is None) != (triple[0] is None) for triple in triples for g in triple):
        return False
    largest = max((float(true.norm()) for *_, true in triples if true is not None), default=0.0)
    return all(
        float((ours - true).norm()) <= LIMIT * float((theirs - true).norm())
        for ours, theirs, true in triples
        if ours is not None and not float((ours - true).norm()) <= _allowed(true, largest)
    )


def _further(module: Any, eager: Any, exact: Any) -> str:
    """Say whether all gradients together are further from FP64 than those of eager autocast."""
    named = [dict(each.named_parameters()) for each in (module, eager, exact)]
    triples = [[each[name].grad for each in named] for name in named[0]]
    if any((g is None) != (triple[0] is None) for triple in triples for g in triple):
        return "a gradient is in one of them"
    ours, theirs, true = zip(*(triple for triple in triples if triple[0] is not None), strict=True)
    off, own = distance(ours, true), distance(theirs, true)
    return "" if _is_near(ours, theirs, true) else f"gradients are {off:.3g} off, eager's {own:.3g}"


def _is_near(ours: Any, theirs: Any, true: Any) -> bool:
    return distance(ours, true) <= max(LIMIT * distance(theirs, true), LOW_ROUNDING)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--limit-s", type=float, default=1e9)
    options = parser.parse_args()
    done = len(options.out.read_text().splitlines()) if options.out.exists() else 0
    ends = time.monotonic() + options.limit_s
    warnings.simplefilter("ignore")
    with options.out.open("a", encoding="utf-8") as file:
        for seed in range(options.first + done, options.first + options.count):
            if time.monotonic() > ends:
                sys.exit("stopped by --limit-s; the same command goes on")
            try:
                fault = difference(seed, options.runtime)
            except Exception as error:  # one program must not end the campaign
                fault = f"{type(error).__name__}: {str(error)[:200]}"
            file.write(json.dumps({"seed": seed, "runtime": options.runtime, "difference": fault}) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
