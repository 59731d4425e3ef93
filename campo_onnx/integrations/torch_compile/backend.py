"""The backend: what torch.compile calls with each graph that it captured."""

import itertools
import logging
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import unset_fake_temporarily

from campo_onnx.errors import CampoError, UnsupportedModelError, is_foreign
from campo_onnx.export.torch.complex_numbers import without_complex
from campo_onnx.export.torch.fp32_demands import autocast_around
from campo_onnx.export.translate import UntranslatedUseError
from campo_onnx.integrations.inductor.backend import compiled_by_torch
from campo_onnx.integrations.torch_compile.autocast import autocast_precision, mark_demands, without_casts
from campo_onnx.integrations.torch_compile.flat import flatten, provider_of, refuse_untranslatable
from campo_onnx.integrations.torch_compile.joint import JointGraph, opaque_call
from campo_onnx.integrations.torch_compile.planning import plan_graph
from campo_onnx.integrations.torch_compile.recurrent import listen
from campo_onnx.integrations.torch_compile.runtimes import RuntimeChoice
from campo_onnx.integrations.torch_compile.settings import TORCH, Settings
from campo_onnx.integrations.torch_compile.single import InPieces, Piece, SizedGraph, in_torch
from campo_onnx.integrations.torch_compile.tracing import boxed, decompositions, traced
from campo_onnx.integrations.torch_compile.warn_once import warn_once
from campo_onnx.runtime.machine import DEFAULT

_LOG = logging.getLogger(__name__)

COMPILED: "weakref.WeakValueDictionary[int, Compiled]" = weakref.WeakValueDictionary()
"""Models compiled in this process that are still alive, in order."""

_counter = itertools.count()


class Compiled:
    """One graph that torch.compile captured, and what runs in its place.

    Parameters and buffers among `tensors`, its inputs, tell which model it belongs to.
    """

    def __init__(
        self,
        tensors: Sequence[Any],
        names: Mapping[int, str],
        settings: Settings,
        *,
        is_under_autocast: bool = False,
    ) -> None:
        self.names, self.settings, self.is_under_autocast = names, settings, is_under_autocast
        self._runtimes = RuntimeChoice(settings)
        self.joint: JointGraph | None = None
        self.graphs: list[SizedGraph] = []
        self.refusals: list[str] = []
        self._tensors: list[weakref.ref[torch.Tensor]] = []
        self._note(tensors)

    def _note(self, arguments: Sequence[Any]) -> None:
        self._tensors += [weakref.ref(t) for t in arguments if isinstance(t, torch.Tensor)]

    def _noting(self, call: Callable[[list[Any]], Sequence[Any]]) -> Callable[[list[Any]], Sequence[Any]]:
        """Note what the first call gets: DistributedDataParallel has graphs captured with other tensors."""
        calls = itertools.count()

        def run(arguments: list[Any]) -> Sequence[Any]:
            if not next(calls):
                self._note(arguments)
            return call(arguments)

        return boxed(run)

    def reads(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether one of some tensors is among its inputs."""
        own = {id(t) for ref in self._tensors if (t := ref()) is not None}
        return any(id(t) in own for t in tensors)

    # --- what AOTAutograd calls, in this order ---

    def partition(
        self, gm: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **more: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        """Cut a joint graph."""
        primals = len(inputs[0])
        try:
            # AOTAutograd is tracing, and has its own fake tensors in force.
            with unset_fake_temporarily():
                self.joint = JointGraph(
                    without_casts(_copy(gm)) if self.is_under_autocast else gm,
                    primals=primals,
                    forward_results=num_fwd_outputs,
                    weights=frozenset(more.get("static_lifetime_input_indices") or ()),
                    names=self.names,
                    settings=self.settings,
                )
                return self.joint.halves()
        except Exception as error:  # the one place where a joint graph is given up: the fallback has its say
            self.joint = None
            self._give_up(error, gm)
        # Torch cuts, and each half is compiled as far as it can be.
        halves: tuple[torch.fx.GraphModule, torch.fx.GraphModule] = min_cut_rematerialization_partition(
            gm, inputs, num_fwd_outputs=num_fwd_outputs, **more
        )
        return halves

    def compile_half(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Make something callable of a forward or backward pass."""
        call = opaque_call(gm)
        return self._compiled(gm, "half of a training step") if call is None else self._noting(call)

    def compile_inference(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Make something callable of a graph without a backward pass."""
        return self._compiled(gm, "forward pass")

    # ---------------------------------------------------------------------------------------------

    def _compiled(self, gm: torch.fx.GraphModule, kind: str) -> Callable[..., Any]:
        try:
            with unset_fake_temporarily():
                wide = without_casts(_copy(gm)) if self.is_under_autocast else gm
                graph = SizedGraph(wide, self._made, kind=kind, sessions=self.settings.sessions)
                graph.made_as_traced()
        except UnsupportedModelError as error:
            self._give_up(error, gm)
            return boxed(torch.fx.Interpreter(gm).boxed_run)
        self.graphs.append(graph)
        return self._noting(graph)

    def _made(self, gm: torch.fx.GraphModule, arguments: int) -> Callable[[list[Any]], Sequence[Any]]:
        """Make a session of a graph of static sizes, else sessions of its pieces, else nothing of it."""
        refused: set[str] = set()
        try:
            real = without_complex(_copy(gm), decompositions())
            refuse_untranslatable(real)
            return self._piece(real, arguments)
        except Exception as error:  # translation, ONNX's checker and ONNX Runtime have errors of their own
            self._give_up(error, gm)
            refused |= _used(error)
        while True:
            try:
                return InPieces(_copy(gm), self._piece, frozenset(refused))
            except Exception as error:
                self._give_up(error, gm)
                if not _used(error) - refused:
                    return in_torch(gm)
                refused |= _used(error)

    def _piece(self, gm: torch.fx.GraphModule, arguments: int) -> Piece:
        flat = flatten(gm, arguments, self.names)
        processor = provider_of(flat.device)

        model = cache(flat.model)

        def planned(runtime: str) -> Piece:
            graph = model() if runtime == DEFAULT else flat.model(runtime=runtime)
            return Piece(flat.interface, plan_graph(graph, {}, self.settings, processor, runtime))

        piece = self._runtimes.candidate(None, processor, planned, model)
        piece.open()
        return piece

    def _give_up(self, error: Exception, gm: torch.fx.GraphModule) -> None:
        if is_foreign(error):
            raise error
        error = _explained(error, gm)
        if self.settings.fallback == "error":
            raise error
        message = str(error) if isinstance(error, CampoError) else f"{type(error).__name__}: {error}"
        if not isinstance(error, CampoError):
            _LOG.debug("a graph cannot be compiled", exc_info=error)
        if not self.refusals:  # once for a graph, however many of its parts are concerned
            warn_once(f"campo-onnx leaves a part of the model to torch: {message}")
        self.refusals.append(message)


def _explained(error: Exception, gm: torch.fx.GraphModule) -> Exception:
    """Say that it is for float64 that a runtime has no kernel, where it is."""
    if not isinstance(error, UnsupportedModelError) or "implementation" not in error.why:
        return error
    values = (node.meta.get("val") for node in gm.graph.nodes)
    if not any(isinstance(v, torch.Tensor) and v.dtype == torch.float64 for v in values):
        return error
    return UnsupportedModelError(
        "a part of the model computes in float64",
        why=error.why,
        remedy="Convert the module and its inputs with .float(): this backend plans the precision.",
    )


def _used(error: Exception) -> set[str]:
    """Names of the nodes that cannot be translated as they are used."""
    results = error.results if isinstance(error, UntranslatedUseError) else ()
    return {ref[0] for ref in results if isinstance(ref, tuple)}


def _copy(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.output(graph.graph_copy(gm.graph, copies)).meta = dict(gm.graph.output_node().meta)
    for old, new in copies.items():
        new.meta = dict(old.meta)
    return torch.fx.GraphModule(gm, graph)


def campo_onnx(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph for ``torch.compile(model, backend="campo_onnx")``.

    `options`: see :class:`~campo_onnx.integrations.torch_compile.settings.Settings`.
    `mode`: not looked at: modes are those of torch's own compiler.

    Raises UsageError if an option is unknown, or has no such value; UnsupportedModelError if something cannot
    be translated, under ``options={"fallback": "error"}``.
    """
    listen()
    settings = Settings.of(options)
    mark_demands(gm, autocast_around())
    if settings.runtime == TORCH:
        return compiled_by_torch(
            gm,
            example_inputs,
            precision=settings.precision,
            lists=settings.lists,
            keep_fp32=settings.keep_fp32,
        )
    allowed = autocast_precision(gm)
    if allowed is not None and settings.precision is None:
        settings = replace(settings, precision=allowed)
    compiled = Compiled(example_inputs, _names(gm), settings, is_under_autocast=allowed is not None)
    call = traced(
        gm,
        example_inputs,
        partition=compiled.partition,
        compiler=compiled.compile_half,
        inference_compiler=compiled.compile_inference,
    )
    COMPILED[next(_counter)] = compiled
    call.campo_onnx = compiled  # type: ignore[attr-defined]  # alive as long as what it belongs to
    return call


listen()

_PART = re.compile(r"\._modules\['([^']*)'\]|\._(parameters|buffers)\['([^']*)'\]")


def _names(gm: torch.fx.GraphModule) -> dict[int, str]:
    """Call parameters and buffers as the model does, and other inputs as the traced function."""
    names: dict[int, str] = {}
    for position, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder"):
        source = getattr(node.meta.get("grapharg"), "source", None)
        own = getattr(source, "name", "")
        path = str(own() if callable(own) else own)
        parts = [a or b for a, _, b in _PART.findall(path)]
        kind = next((k for _, k, _ in _PART.findall(path) if k), None)
        prefix = {"parameters": "param.", "buffers": "buf."}.get(kind or "", "input.")
        stem = ".".join(parts) if kind else node.name.removeprefix("l_").removesuffix("_")
        name = f"{prefix}{stem}"
        names[position] = name if name not in names.values() else f"{name}.{position}"
    return names
