"""Make the graphs of this folder anew: three networks out of PyTorch, JAX and ORTModule.

    .venv-frameworks/bin/python -m tests.data.frameworks.make torch jax
    PYTHONPATH=tests/integrations .venv-ortmodule/bin/python -m tests.data.frameworks.make ortmodule

The environments are those of ``make test-frameworks`` and ``make test-ortmodule``. Weights are inputs
of every graph, so the files hold structure only. No step is run.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import onnx

FOLDER = Path(__file__).parent


def from_torch() -> Mapping[str, onnx.ModelProto]:
    from campo_onnx.export.torch import export_training_step
    from tests.data.frameworks.torch_networks import NETWORKS

    graphs = {}
    for name, make in NETWORKS.items():
        network, batch = make()
        # The loss is inside the module, as ORTModule wants it.
        graphs[name] = export_training_step(network, lambda loss: loss, batch, loss_scale=False)
    return graphs


def from_jax() -> Mapping[str, onnx.ModelProto]:
    from campo_onnx.export.jax import export_training_step
    from tests.data.frameworks.jax_networks import NETWORKS

    return {
        name: export_training_step(network.loss, network.parameters, network.batch, loss_scale=False)
        for name, network in NETWORKS.items()
    }


def from_ortmodule() -> Mapping[str, onnx.ModelProto]:
    import torch_shim  # noqa: F401  # first, so that ORTModule meets the PyTorch it expects
    from onnxruntime.training.ortmodule import DebugOptions, LogLevel, ORTModule

    from tests.data.frameworks.torch_networks import NETWORKS

    graphs = {}
    for name, make in NETWORKS.items():
        network, batch = make()
        module = ORTModule(network, DebugOptions(log_level=LogLevel.ERROR))
        manager = module._torch_module._execution_manager(True)
        _, exported = manager._graph_transition_manager.get_post_processed_model(batch, {})
        manager._initialize_graph_builder(exported)
        manager._detect_from_inputs(batch, {})
        manager._build_graph(manager._get_graph_transformer_config())
        graphs[name] = bound(manager._onnx_models.optimized_model, batch)
    return graphs


def bound(model: onnx.ModelProto, batch: tuple) -> onnx.ModelProto:
    """Write the batch's sizes where the graph has names for them."""
    sizes = {
        dim.dim_param: size
        for value, tensor in zip(model.graph.input, batch, strict=False)  # weights follow
        for dim, size in zip(value.type.tensor_type.shape.dim, tensor.shape, strict=True)
        if dim.dim_param
    }
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    return model


SOURCES: Mapping[str, Callable[[], Mapping[str, onnx.ModelProto]]] = MappingProxyType(
    {"torch": from_torch, "jax": from_jax, "ortmodule": from_ortmodule}
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("frameworks", nargs="+", choices=SOURCES)
    for framework in parser.parse_args().frameworks:
        for name, model in SOURCES[framework]().items():
            path = FOLDER / f"{name}_{framework}.onnx"
            onnx.save(model, path)
            print(f"{path.name}: {len(model.graph.node)} nodes, {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
