"""ONNX Runtime's own cast placement, PropagateCastOps, against a plan, in ORTModule's graphs.

    PYTHONPATH=tests/integrations:. .venv-ortmodule/bin/python -m torch_shim benchmarks/ortmodule_pco.py

Runs where onnxruntime-training 1.19.2 and PyTorch are installed (``make test-ortmodule``), and Jinja is.
Writes results/ortmodule.json and .md. Graphs are built, not run: times are predictions from public figures.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from networks import Bert, Cnn, Mlp
from onnxruntime.training.ortmodule import DebugOptions, LogLevel, ORTModule

from benchmarks.pages import arguments, provenance, publish
from campo_onnx import Options, oplists, target
from campo_onnx.integrations.forward import with_backward
from campo_onnx.integrations.ortmodule import Attached, attach
from campo_onnx.ir.importer import import_model
from campo_onnx.optimize.problem import Problem
from campo_onnx.planning.pipeline import problem_of

ALLOW = ["MatMul", "Gemm", "Conv"]
STRATEGIES = ("optimal", "campo", "tf-amp")

Row = dict[str, Any]


def networks() -> Iterator[tuple[str, torch.nn.Module, tuple[torch.Tensor, ...]]]:
    torch.manual_seed(0)
    yield "MLP 1024", Mlp(width=1024), (torch.randn(1024, 64),)
    yield "CNN 64", Cnn(width=64), (torch.randn(32, 8, 56, 56), torch.randint(16, (32,)))
    words = torch.randint(8192, (8, 128))
    yield "BERT 768, two layers", Bert(words=8192, width=768), (words, words)


def build(
    network: torch.nn.Module, batch: tuple[torch.Tensor, ...], prepare: Callable[[ORTModule], Any]
) -> tuple[onnx.ModelProto, onnx.ModelProto, Any]:
    """Take ORTModule's first step up to where it has built the gradient graph.

    Returns the forward graph as fused, the gradient graph, and what `prepare` returned.
    """
    module = ORTModule(network, DebugOptions(log_level=LogLevel.ERROR))
    prepared = prepare(module)
    manager = module._torch_module._execution_manager(True)
    _, exported = manager._graph_transition_manager.get_post_processed_model(batch, {})
    manager._initialize_graph_builder(exported)
    manager._detect_from_inputs(batch, {})
    with tempfile.TemporaryDirectory() as folder:
        config = manager._get_graph_transformer_config()
        config.optimized_pre_grad_filepath = str(Path(folder) / "forward.onnx")
        manager._build_graph(config)
        forward = onnx.load(config.optimized_pre_grad_filepath)
    return forward, manager._onnx_models.optimized_model, prepared


def propagate(level: int) -> Callable[[ORTModule], None]:
    def prepare(module: ORTModule) -> None:
        options = module._torch_module._execution_manager(True)._runtime_options
        strategies = type(options.propagate_cast_ops_strategy)
        options.propagate_cast_ops_strategy = strategies.INSERT_AND_REDUCE
        options.propagate_cast_ops_level, options.propagate_cast_ops_allow = level, ALLOW

    return prepare


def planned(on: str, strategy: str) -> Callable[[ORTModule], Attached]:
    return lambda module: attach(module, device=on, strategy=strategy)


def row(placed_by: str, gradient: onnx.ModelProto, sizes: Mapping[str, int], asked: Problem) -> Row:
    view = import_model(gradient, sizes).view
    casts = [node for node in gradient.graph.node if node.op_type == "Cast"]
    backward = sum(node.doc_string == "Backward pass" for node in casts)
    low = asked.low.onnx_dtype
    low_nodes = frozenset(
        node.name
        for node in view.nodes
        if node.name in asked.view.node
        and node.op.op_type != "Cast"
        and any(view.tensors[t].dtype == low for t in (*node.inputs, *node.outputs) if t)
    )
    return {
        "placed_by": placed_by,
        "forward_casts": len(casts) - backward,
        "backward_casts": backward,
        "low_nodes": len(low_nodes),
        "predicted_us": asked.predicted_us(low_nodes),
        "fp32_us": asked.predicted_us(frozenset()),
    }


def rows(network: torch.nn.Module, batch: tuple[torch.Tensor, ...], on: str) -> Iterator[Row]:
    options = Options(target=target(on), lists=oplists("campo"))
    forward, gradient, attached = build(network, batch, planned(on, "fp32"))
    sizes = attached.graphs[0].sizes
    asked = with_backward(*(problem_of(import_model(part, sizes), options) for part in (forward, gradient)))
    yield row("ORTModule as it comes", gradient, sizes, asked)
    for level in (0, 1, 2):
        _, mixed, _ = build(network, batch, propagate(level))
        yield row(f"PropagateCastOps, level {level}", mixed, sizes, asked)
    for strategy in STRATEGIES:
        _, mixed, attached = build(network, batch, planned(on, strategy))
        if attached.failure is not None:
            raise attached.failure
        yield row(f"campo-onnx, {strategy}", mixed, sizes, asked)


def main() -> None:
    """Build every graph, and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--device", default="v100", help="what to plan for (campo-onnx devices)")
    on = parser.parse_args().device
    table = [{"network": name, **r} for name, *network in networks() for r in rows(*network, on)]
    facts = {"made": provenance("torch"), "ort": onnxruntime.__version__, "device": on, "allow": ALLOW}
    print(*publish("ortmodule", {**facts, "rows": table}))


if __name__ == "__main__":
    main()
