"""A compiled model as it runs: plans, casts, and what torch runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from campo_onnx.errors import UsageError
from campo_onnx.integrations.torch_compile.backend import COMPILED, Compiled
from campo_onnx.integrations.torch_compile.flat import provider_of
from campo_onnx.integrations.torch_compile.recurrent import LEFT, recurrent_layers
from campo_onnx.integrations.torch_compile.runtimes import Trial
from campo_onnx.integrations.torch_compile.single import InPieces, Piece
from campo_onnx.integrations.torch_compile.step import TrainingStep
from campo_onnx.ops.precision import is_low_dtype
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.runtime.machine import CPU, DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTensor:
    """A tensor that is computed in the forward pass and kept for the backward pass."""

    name: str  # in the plan's graph
    is_low: bool  # whether it is kept in low precision
    nbytes: int  # its size


@dataclass(frozen=True, kw_only=True)
class RunningGraph:
    """One graph that runs in a runtime of ours."""

    # `"training step"`, `"forward pass"`; `"half of a training step"` or `"piece"` where torch runs some
    # operations
    kind: str
    # what the dynamic sizes are, in the order in which torch found them; none if all are static
    sizes: tuple[int, ...]
    plan: Plan  # every decision
    provider: str  # where it runs: `"cpu"` or `"cuda"`
    runtime: str = DEFAULT  # what runs it
    # what was timed before the runtime was chosen; none where there was one, or an earlier process chose
    trials: tuple[Trial, ...] = ()
    # what a training step keeps between its passes, beside weights and inputs
    kept: tuple[KeptTensor, ...] = ()

    def __str__(self) -> str:
        plan = self.plan
        at = f" at {' x '.join(map(str, self.sizes))}" if self.sizes else ""
        parts = [
            f"{self.kind}{at}: {len(plan.low_nodes)} of {len(plan.decisions)} nodes in {plan.low.value}, "
            f"{len(plan.casts)} casts",
            f"predicted {plan.fp32_us:.0f} us -> {plan.predicted_us:.0f} us on {plan.device} ({plan.source})",
        ]
        if self.kept:
            low = sum(tensor.is_low for tensor in self.kept)
            size = sum(tensor.nbytes for tensor in self.kept)
            parts.append(
                f"{len(self.kept)} tensors kept for the backward pass, {low} of them in low precision, "
                f"{size:,} bytes"
            )
        is_emulated = self.provider == CPU and self.runtime == DEFAULT and plan.low_nodes
        emulated = ", which rounds as planned" if is_emulated else ""
        runtime = "" if self.runtime == DEFAULT else f" in {self.runtime}"
        parts.append(f"runs on {self.provider}{runtime}{emulated}")
        if self.trials:
            at = f" at {' x '.join(map(str, self.trials[0].sizes))}" if self.trials[0].sizes else ""
            parts.append(f"tried here{at}: {', '.join(map(str, self.trials))}")
        return "; ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Graphs and plans of a compiled model."""

    # what runtimes run: one for each graph that torch.compile captured and each set of sizes
    graphs: tuple[RunningGraph, ...]
    left: tuple[str, ...]  # operations that torch runs
    refusals: tuple[str, ...]  # why, a message each
    recurrent: tuple[str, ...] = ()  # recurrent layers that torch runs

    def __str__(self) -> str:
        lines = list(map(str, self.graphs))
        if self.recurrent:
            lines.append(f"torch runs {', '.join(self.recurrent)}: {LEFT}")
        lines = lines or [_NOTHING]
        if self.left:
            lines.append(f"torch runs {', '.join(self.left)}")
        lines += [f"because {refusal}" for refusal in self.refusals]
        return "\n".join(lines)

    def casts(self) -> str:
        """List every Cast of every plan, a line each."""
        return "\n".join(
            f"{cast.tensor} to {cast.dst.value} for {', '.join(name for name, _ in cast.consumers)}"
            for graph in self.graphs
            for cast in graph.plan.casts
        )


_NOTHING = (
    "nothing runs here yet: run a step first. Of nn.Sequential and others whose forward is torch's own, "
    "module.compile() compiles nothing: call torch.compile(module, backend='campo_onnx')"
)


def report(model: Any = None) -> Report:
    """Say what runs in place of a compiled model.

    `model`: the module, compiled or not: what counts is which compiled graphs read its parameters and
    buffers. None for everything that was compiled in this process.
    """
    if model is None:
        chosen = list(COMPILED.values())
    elif isinstance(model, torch.nn.Module):
        tensors = [*model.parameters(), *model.buffers(), *_unsharded(model)]
        chosen = [compiled for compiled in COMPILED.values() if compiled.reads(tensors)]
    else:
        raise UsageError(
            f"{type(model).__name__} is not a module",
            remedy="Pass the model, or nothing to report on every model.",
        )
    left = [name for compiled in chosen for name in _left(compiled)]
    return Report(
        graphs=tuple(graph for compiled in chosen for graph in _graphs(compiled)),
        left=tuple(dict.fromkeys(left)),
        refusals=tuple(dict.fromkeys(r for compiled in chosen for r in compiled.refusals)),
        recurrent=() if model is None else recurrent_layers(model),
    )


def _unsharded(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Give the parameters that graphs read where FSDP2 has put parts of them in their place."""
    for part in model.modules():
        state = getattr(part, "_get_fsdp_state", lambda: None)()
        for group in getattr(state, "_fsdp_param_groups", ()):
            whole = (getattr(one, "_unsharded_param", None) for one in group.fsdp_params)
            yield from (tensor for tensor in whole if tensor is not None)


def _graphs(compiled: Compiled) -> Iterator[RunningGraph]:
    if compiled.joint is not None:
        at_any = [((), next(iter(one.values()))) for one in compiled.joint.resized.values() if one]
        for sizes, step in (*compiled.joint.steps.items(), *at_any):
            tensors = step.planned.imported.view.tensors
            saved = [
                KeptTensor(name=n, is_low=is_low_dtype(tensors[n].dtype), nbytes=slot.nbytes)
                for n, slot in step.slots.items()
            ]
            kind = "training step" if step.planned.any_size is None else "training step at any size"
            yield _running(kind, sizes, step, saved)
    for graph in compiled.graphs:
        for sizes, one in graph.made.items():
            if isinstance(one, Piece):
                yield _running(graph.kind, sizes, one)
            elif isinstance(one, InPieces):
                for piece in one.pieces:
                    yield _running("piece", sizes, piece)


def _running(
    kind: str, sizes: Sequence[int], graph: TrainingStep | Piece, saved: Sequence[KeptTensor] = ()
) -> RunningGraph:
    return RunningGraph(
        kind=kind,
        sizes=tuple(sizes),
        plan=graph.planned.plan,
        provider=provider_of(graph.flat.device),
        runtime=graph.planned.runtime,
        trials=graph.trials,
        kept=tuple(saved),
    )


def _left(compiled: Compiled) -> Iterator[str]:
    for graph in compiled.graphs:
        for piece in graph.made.values():
            if isinstance(piece, InPieces):
                yield from piece.left
