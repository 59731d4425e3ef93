"""Kernels of TorchInductor's that run a traced graph, or torch's own operations one after the other."""

import json
import logging
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from campo_onnx.runtime.machine import CPU
from campo_onnx.runtime.torch.installed import cxx_problem
from campo_onnx.runtime.torch.traced import Traced, origin_of

_LOG = logging.getLogger(__name__)

_FEW_OPERATIONS, _FEW_BYTES = 24, 1 << 20
"""A graph of at most so many operations on at most so many bytes is run as it is: compiling takes seconds,
and starting its kernels as long as starting those of torch."""

_MOST_OPERATIONS = 10_000
"""A graph of more is run as it is. A layer of BERT, 389 operations, takes 25 CPU seconds to compile on a
Zen 5: so many would take ten minutes."""

_VIEWS = frozenset({"view", "reshape", "permute", "transpose", "t", "expand", "slice", "select", "unsqueeze"})
_BROKEN = re.compile(
    r"(?P<file>/[^:'\"\n]+\.so): (?:file too short|invalid ELF header|cannot read file data)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel of a compiled graph, or a call of a library's."""

    name: str
    nodes: tuple[str, ...]  # of the ONNX graph, computed by it


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """Runs a graph on inputs and on the memory of outputs."""

    call: Callable[..., Any]
    note: str = ""  # why it is not compiled
    source: str = ""  # the generated program
    # in the order in which they run; of a compiled graph only where nodes are timed
    kernels: tuple[Kernel, ...] = ()


def runnable(
    traced: Traced,
    inputs: Sequence[torch.Tensor],
    *,
    threads: int,
    traces: bool = False,
    channels_last: bool = False,
) -> Runnable:
    """Compile a graph, unless that gains nothing or fails, which the note says.

    `traces` lets a profiler see the kernels. `channels_last` makes convolutions compute with channels last;
    else the compiler chooses.
    """
    on_gpu = any(tensor.device.type != CPU for tensor in traced.outputs)
    if why := _eager(traced.module.graph, on_gpu=on_gpu):
        return _uncompiled(traced, why)
    options: dict[str, Any] = {"cpp.threads": threads}
    if channels_last:
        options["force_layout_optimization"] = True
    if traces:
        options |= {"cpp.enable_kernel_profile": True, "fx_graph_cache": False}
        options |= {"trace.provenance_tracking_level": 1}
    compiler = _Compiler()
    try:
        call = compiler.compiled(traced.module, traced.examples(inputs), options)
    except Exception as error:  # whatever a compiler fails with: torch runs the same operations without it
        _LOG.debug("TorchInductor does not compile a graph", exc_info=error)
        first = (str(error).strip() or type(error).__name__).partition("\n")[0]
        return _uncompiled(traced, f"TorchInductor fails with {first!r}")
    return Runnable(call=call, source=compiler.source, kernels=_kernels(compiler) if traces else ())


def _uncompiled(traced: Traced, why: str) -> Runnable:
    operations = (
        node for node in traced.module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)
    )
    kernels = ((str(node.target), origin_of(node)) for node in operations)
    return Runnable(
        call=traced.module,
        note=f"torch runs the graph operation by operation: {why}",
        kernels=tuple(Kernel(name=name, nodes=(origin,) if origin else ()) for name, origin in kernels),
    )


@dataclass(slots=True)
class _Compiler:
    """One call of TorchInductor's, and what it says of the program that it makes."""

    source: str = ""
    origins: dict[str, str] = field(default_factory=dict)  # nodes of ONNX by the names of operations
    mapping: str = ""  # operations by kernel, as JSON

    def compiled(
        self, module: GraphModule, examples: Sequence[torch.Tensor], options: dict[str, Any]
    ) -> Callable[..., Any]:
        """Compile.

        What a killed process left half-written in the compiler's cache is removed, each file once.
        """
        removed: set[Path] = set()
        while True:
            try:
                with torch.no_grad(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # torch warns of functions of its own that it calls
                    return _compile(module, list(examples), self._inner, options)
            except Exception as error:
                file = broken_file(error)
                if file is None or file in removed:
                    raise
                _LOG.info("the broken file %s of TorchInductor's cache is removed", file)
                file.unlink(missing_ok=True)
                removed.add(file)

    def _inner(self, module: GraphModule, examples: Any, **settings: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx_inner

        program = compile_fx_inner(module, examples, **settings)
        self.source = str(getattr(program, "source_code", ""))
        self.mapping = getattr(program, "inductor_provenance_mapping_str", None) or ""
        names = ((node.name, origin_of(node)) for node in module.graph.nodes)
        self.origins = {name: origin for name, origin in names if origin is not None}
        return program


def _compile(
    module: GraphModule, examples: list[torch.Tensor], inner: Callable[..., Any], options: dict[str, Any]
) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx

    call: Callable[..., Any] = compile_fx(module, examples, inner_compile=inner, config_patches=options)
    return call


def _kernels(compiler: _Compiler) -> tuple[Kernel, ...]:
    """List the kernels of a program, as far as this release of torch tells what they compute."""
    computed = json.loads(compiler.mapping).get("cppCodeToPost", {}) if compiler.mapping else {}
    return tuple(
        Kernel(
            name=label.rpartition(":")[0],
            nodes=tuple(dict.fromkeys(compiler.origins[name] for name in names if name in compiler.origins)),
        )
        for label, names in sorted(computed.items(), key=lambda item: int(item[0].rpartition(":")[2]))
    )


def broken_file(error: BaseException) -> Path | None:
    """Find the library in the compiler's cache that an error says is not whole."""
    match = _BROKEN.search(str(error))
    return None if match is None else Path(match["file"])


def _eager(graph: torch.fx.Graph, *, on_gpu: bool) -> str:
    """Say why a graph is not compiled; empty if it is."""
    operations = [node for node in graph.nodes if node.op == "call_function"]
    if len(operations) > _MOST_OPERATIONS:
        return f"its {len(operations):,} operations would take too long to compile"
    if not on_gpu and (problem := cxx_problem()):
        return problem
    computing = [node for node in operations if not _is_view(node)]
    nbytes = sum(map(_nbytes, computing))
    if len(operations) <= _FEW_OPERATIONS and nbytes <= _FEW_BYTES:
        return f"it has {len(operations)} operations on {nbytes:,} bytes, and compiling takes seconds"
    writes = torch.ops.aten.copy_.default
    if computing and not any(_computed(node) for node in computing if node.target is not writes):
        return "none of its operations reads what another one computes, so that there is nothing to fuse"
    return ""


def _is_view(node: Node) -> bool:
    return getattr(node.target, "_opname", "") in _VIEWS


def _computed(node: Node) -> bool:
    """Whether a node reads a result, be it through views."""
    sources = list(node.all_input_nodes)
    while sources:
        source = sources.pop()
        if source.op == "call_function" and not _is_view(source):
            return True
        sources += source.all_input_nodes
    return False


def _nbytes(node: Node) -> int:
    value = node.meta.get("val")
    tensors = value if isinstance(value, tuple | list) else (value,)
    return sum(math.prod(t.shape) * t.dtype.itemsize for t in tensors if isinstance(t, torch.Tensor))
