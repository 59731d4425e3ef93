"""Sessions on torch's memory."""

from collections.abc import Collection, Mapping, Sequence

import onnx
import torch
from onnx import helper

from campo_onnx.integrations.torch_compile.flat import Tensor, provider_of
from campo_onnx.ir.importer import Imported
from campo_onnx.runtime.onnxruntime.addresses import AddressedSession, Place
from campo_onnx.runtime.onnxruntime.providers import machine


def part_of(
    imported: Imported, nodes: Collection[str] | None, reads: Sequence[str], writes: Sequence[str]
) -> onnx.ModelProto:
    """Take some nodes out of a graph.

    Parameters
    ----------
    imported
        The whole graph.
    nodes
        Names of nodes; None for all.
    reads, writes
        What becomes an input and an output.
    """
    given = imported.model
    kept = [node for node in given.graph.node if nodes is None or node.name in nodes]
    made = {t for node in kept for t in node.output}
    used = {t for node in kept for t in node.input} | set(writes)
    shown: list[str] = []
    for name in writes:
        # An input, or what is an output already, goes out as a copy.
        shown.append(name if name in made and name not in shown else f"{name}.copy")
    graph = onnx.GraphProto(name="part")
    graph.node.extend(kept)
    for name, output in zip(writes, shown, strict=True):
        if name != output:
            graph.node.add(op_type="Identity", name=output, input=[name], output=[output])
    graph.initializer.extend(i for i in given.graph.initializer if i.name in used)
    tensors = imported.view.tensors
    for field, names, called in ((graph.input, reads, reads), (graph.output, writes, shown)):
        for name, output in zip(names, called, strict=True):
            info = tensors[name]
            field.append(helper.make_tensor_value_info(output, info.dtype, info.shape))
    return onnx.ModelProto(ir_version=given.ir_version, opset_import=given.opset_import, graph=graph)


def place(name: str, imported: Imported, device: torch.device) -> Place:
    """Say what lies at the address of a tensor."""
    info = imported.view.tensors[name]
    return Place(
        name=name,
        dtype=info.dtype,
        shape=info.shape or (),
        provider=provider_of(device),
        device_id=device.index or 0,
    )


def open_part(
    imported: Imported,
    nodes: Collection[str] | None,
    reads: Mapping[str, torch.device],
    writes: Sequence[str],
    device: torch.device,
) -> AddressedSession:
    """Load a part of a graph.

    Parameters
    ----------
    imported, nodes
        The graph, and the names of the nodes in the part; None for all.
    reads
        Inputs, and where each lies.
    writes
        Outputs.
    device
        Where it runs.
    """
    provider = provider_of(device)
    model = part_of(imported, nodes, list(reads), writes)
    shown = [value.name for value in model.graph.output]
    return AddressedSession(
        model,
        machine(provider, torch.get_num_threads() if provider == "cpu" else 0),
        [place(name, imported, where) for name, where in reads.items()],
        [_renamed(place(name, imported, device), as_) for name, as_ in zip(writes, shown, strict=True)],
        stream=torch.cuda.current_stream(device).cuda_stream if provider == "cuda" else 0,
    )


def _renamed(given: Place, name: str) -> Place:
    return Place(
        name=name, dtype=given.dtype, shape=given.shape, provider=given.provider, device_id=given.device_id
    )


_NOTHING = torch.empty(16)  # ONNX Runtime refuses the null pointer of an empty tensor


def address(tensor: torch.Tensor) -> int:
    """Give a tensor's address; another where it has no elements."""
    return tensor.data_ptr() or _NOTHING.data_ptr()


def allocated(tensor: Tensor, device: torch.device) -> torch.Tensor:
    """Make room for what a session writes."""
    return torch.empty(tensor.layout.stored_shape, dtype=tensor.dtype, device=device)
