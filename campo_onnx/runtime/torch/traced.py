"""A translated graph at some sizes, as torch's operations that write results where the caller says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.torch.translation import Translation
from campo_onnx.runtime.torch.translation.graph import ORIGIN

_ELSEWHERE = "Run the graph on ONNX Runtime (--runtime onnxruntime)."
_DEPENDS = (DataDependentOutputException, DynamicOutputShapeException)

_aten = torch.ops.aten
LIBRARY = frozenset(
    {
        *(_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default),
        *(_aten.convolution.default, _aten.convolution_backward.default),
        *(_aten.mv.default, _aten.dot.default, _aten.addmv.default),
    }
)
"""Operations that kernels of a library compute, in the type of their operands."""

_PRECISIONS = {
    torch.float32: Precision.FP32,
    torch.float16: Precision.FP16,
    torch.bfloat16: Precision.BF16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A graph of torch's operations on inputs, then on the memory of outputs; it returns nothing."""

    module: torch.fx.GraphModule
    outputs: tuple[torch.Tensor, ...]  # without memory: their shapes and types
    computes: Mapping[str, Precision]  # arithmetic of products and convolutions, by node of the ONNX graph

    def examples(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Give arguments that a compiler looks at the sizes and types of."""
        return [*inputs, *(torch.empty(o.shape, dtype=o.dtype, device=o.device) for o in self.outputs)]


def trace(translation: Translation, inputs: Sequence[torch.Tensor]) -> Traced:
    """Record what a graph computes on inputs of these sizes and types; nothing is computed.

    Results are copied into tensors that follow the inputs. A compiler lets the kernel that computes one write
    it there, and none of them is memory of an input, of a constant or of another result.
    """
    try:
        with preserve_node_meta(), torch.no_grad():
            module = make_fx(translation, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    except _DEPENDS as error:
        raise UnsupportedModelError(
            "torch cannot compile the graph",
            why=f"sizes of tensors depend on values: {str(error).strip() or type(error).__name__}",
            remedy=_ELSEWHERE,
        ) from error
    except RuntimeError as error:
        raise UnsupportedModelError(
            "torch cannot run the graph", why=str(error).strip().partition("\n")[0], remedy=_ELSEWHERE
        ) from error
    outputs = _write_outputs(module, translation.outputs)
    module.graph.eliminate_dead_code()
    module.recompile()
    return Traced(
        module=module,
        outputs=outputs,
        computes=MappingProxyType(dict(_computing(module.graph))),
    )


def _write_outputs(module: torch.fx.GraphModule, names: Sequence[str]) -> tuple[torch.Tensor, ...]:
    graph = module.graph
    end = graph.output_node()
    results: Any = end.args[0]
    examples = tuple(_value(module, result, name) for result, name in zip(results, names, strict=True))
    first = next((node for node in graph.nodes if node.op != "placeholder"), end)
    for number, (result, example) in enumerate(zip(results, examples, strict=True)):
        with graph.inserting_before(first):
            place = graph.placeholder(f"written_{number}")
            place.meta["val"] = example
        with graph.inserting_before(end):
            graph.call_function(_aten.copy_.default, (place, result)).meta["val"] = example
    end.args = ((),)
    return examples


def _value(module: torch.fx.GraphModule, result: Any, name: str) -> torch.Tensor:
    value = result.meta.get("val") if isinstance(result, torch.fx.Node) else None
    if value is None and isinstance(result, torch.fx.Node) and result.op == "get_attr":
        value = getattr(module, str(result.target))
    if not isinstance(value, torch.Tensor):
        raise UnsupportedModelError(
            f"torch does not return the output {name!r}",
            why="it is a sequence or an optional, not a tensor",
            remedy=_ELSEWHERE,
        )
    if not all(isinstance(size, int) for size in value.shape):
        raise UnsupportedModelError(
            f"torch does not return the output {name!r}",
            why="its size depends on values, so that no memory can be bound to it",
            remedy=_ELSEWHERE,
        )
    return value


def origin_of(node: torch.fx.Node) -> str | None:
    """Give the node of the ONNX graph that an operation is of, where it says so."""
    origin = node.meta.get("custom", {}).get(ORIGIN)
    return None if origin is None else str(origin)


def _computing(graph: torch.fx.Graph) -> list[tuple[str, Precision]]:
    computing = []
    for node in graph.nodes:
        if node.target in LIBRARY and (origin := origin_of(node)) is not None:
            operand: Any = next(a.meta["val"] for a in node.args if isinstance(a, torch.fx.Node))
            if operand.dtype in _PRECISIONS:
                computing.append((origin, _PRECISIONS[operand.dtype]))
    return computing
