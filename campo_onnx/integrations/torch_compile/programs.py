"""Programs on torch's memory."""

from collections.abc import Collection, Mapping, Sequence

import onnx
import torch
from onnx import helper

from campo_onnx.integrations.torch_compile.flat import Tensor, provider_of
from campo_onnx.ir.importer import Imported
from campo_onnx.runtime.api import AddressedProgram, LoadSettings, Place
from campo_onnx.runtime.registry import load, machine


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
        processor=provider_of(device),
        device_id=device.index or 0,
    )


def open_part(
    imported: Imported,
    nodes: Collection[str] | None,
    reads: Mapping[str, torch.device],
    writes: Sequence[str],
    device: torch.device,
) -> AddressedProgram:
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
    here = machine(provider, torch.get_num_threads() if provider == "cpu" else 0)
    settings = LoadSettings(
        must_stay=False,
        spins=False,  # between two runs the processor belongs to torch's own threads
        device_id=device.index or 0,
        stream=torch.cuda.current_stream(device).cuda_stream if provider == "cuda" else 0,
    )
    return load(model, here, settings=settings).addressed(
        [place(name, imported, where) for name, where in reads.items()],
        [
            place(name, imported, device)._replace(name=output)
            for name, output in zip(writes, shown, strict=True)
        ],
    )


_NOTHING = torch.empty(16)  # ONNX Runtime refuses the null pointer of an empty tensor


def address(tensor: torch.Tensor) -> int:
    """Give a tensor's address; another where it has no elements."""
    return tensor.data_ptr() or _NOTHING.data_ptr()


def allocated(tensor: Tensor, device: torch.device) -> torch.Tensor:
    """Make room for what a program writes."""
    return torch.empty(tensor.layout.stored_shape, dtype=tensor.dtype, device=device)
