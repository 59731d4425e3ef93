"""The faster of the runtimes that run a graph on this CPU, as measured, and where that is kept."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median

from onnx import TensorProto

from campo_onnx.errors import CampoError
from campo_onnx.files import make_folder, read_bytes, refuse_special, write_text
from campo_onnx.ir.view import GraphView
from campo_onnx.ir.walk import Walk
from campo_onnx.runtime.api import Runtime
from campo_onnx.runtime.feeds import index_bound
from campo_onnx.runtime.machine import CPU, DEFAULT
from campo_onnx.runtime.registry import runtime_called, runtimes

_LOG = logging.getLogger(__name__)

_BLOCKS, _STEPS, _LONG_STEPS = 3, 4, 2
"""Threads of one runtime spin on for a while after a step: runtimes take turns in blocks, and the first step
of a block does not count. Blocks of steps that take long are shorter."""

_BUDGET_S = 3.0

_EXCEEDING = frozenset(
    {"BitShift", "CumSum", "MatMul", "Mul", "Pow", "ReduceProd", "ReduceSum", "ReduceSumSquare"}
)
"""Operators whose results soon need more than 32 bits, where they compute with whole numbers."""

_FRACTIONS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})
_WHOLE = frozenset({TensorProto.INT64, TensorProto.UINT64, TensorProto.UINT32})


def runtimes_on_cpu() -> tuple[Runtime, ...]:
    """List the installed runtimes that run graphs on a CPU in its caller's memory, the default first.

    PyTorch's compiler is none of them yet: it takes part once whole steps of it are measured here.
    """
    others = (r for r in _further() if CPU in r.processors and r.capabilities.takes_addresses)
    return (runtime_called(DEFAULT), *(r for r in others if not r.problem(CPU)))


def _further() -> Iterator[Runtime]:
    return (r for r in runtimes() if r.name != DEFAULT and r.capabilities.is_chosen_unasked)


def needs_default(view: GraphView) -> bool:
    """Whether a graph is run by the default runtime, unless another is named.

    Others compute in 32 bits what is double, or whole numbers that may need 64 bits, as hashes do; and
    they do not say that an index is out of range. Indices that are fed are checked before a step, those that
    a graph makes of fractions are not.
    """
    return (
        any(tensor.dtype == TensorProto.DOUBLE for tensor in view.tensors.values())
        or any(
            node.op.op_type in _EXCEEDING and view.tensors[output].dtype in _WHOLE
            for node in view.nodes
            for output in node.outputs
            if output
        )
        or any(
            index_bound(node, position, view) is not None and _is_of_fractions(view, tensor)
            for node in view.nodes
            for position, tensor in enumerate(node.inputs)
            if tensor
        )
    )


def _is_of_fractions(view: GraphView, index: str) -> bool:
    """Whether an index goes back to a Cast of floating-point numbers."""
    walk = Walk([index])
    for reached in walk:
        node = view.producer.get(reached)
        read = [tensor for tensor in node.inputs if tensor] if node is not None else []
        whole = [tensor for tensor in read if view.tensors[tensor].dtype not in _FRACTIONS]
        if node is not None and node.op.op_type == "Cast" and not whole:
            return True
        walk.add(whole)
    return False


def times_us(runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Time runs in turns."""
    began = time.perf_counter()
    for run in runs.values():
        run()
    steps = _STEPS if time.perf_counter() - began < _BUDGET_S / _STEPS else _LONG_STEPS
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_BLOCKS):
        for name, run in runs.items():
            for step in range(steps):
                before = time.perf_counter()
                run()
                if step:
                    samples[name].append(1e6 * (time.perf_counter() - before))
        if time.perf_counter() - began > _BUDGET_S:
            break
    return {name: median(taken) for name, taken in samples.items()}


def kept_choice(folder: Path | None, key: str) -> str:
    """Name of the runtime that :func:`keep_choice` left in a folder; empty without one.

    Choices are kept in `folder`, or nowhere. `key` says what was measured, on which machine, in letters and
    digits.
    """
    if folder is None:
        return ""
    path = folder / _file(key)
    try:
        path.stat()
        refuse_special(path)
        return str(json.loads(read_bytes(path, title=f"the choice {path}"))["runtime"])
    except FileNotFoundError:
        return ""
    except Exception as error:  # a cache must not end a training, whatever its files hold
        _LOG.debug("the choice %s is not used", path, exc_info=error)
        return ""


def keep_choice(folder: Path | None, key: str, runtime: str, step_us: Mapping[str, float]) -> None:
    """Keep the runtime that was measured to be the fastest for a graph, and the times of all."""
    _LOG.info("a graph runs in %s: %s us", runtime, step_us)
    if folder is not None:
        document = {"format_version": 1, "runtime": runtime, "step_us": dict(step_us)}
        with suppress(CampoError, OSError, ValueError):  # ValueError: a null character in the path
            make_folder(folder, remedy="Choose another folder.")
            write_text(json.dumps(document), folder / _file(key), follows_links=False)


def _file(key: str) -> str:
    return f"runtime-{key}.json"
