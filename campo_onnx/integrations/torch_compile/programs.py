"""Programs on torch's memory."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper

from campo_onnx.integrations.torch_compile.flat import Tensor, provider_of
from campo_onnx.integrations.torch_compile.planning import Loaded, Planned
from campo_onnx.runtime.api import AddressedProgram, LoadSettings, Place
from campo_onnx.runtime.machine import CPU, CUDA
from campo_onnx.runtime.registry import load, machine


def part_of(
    planned: Planned, nodes: Collection[str] | None, reads: Sequence[str], writes: Sequence[str]
) -> onnx.ModelProto:
    """Take some nodes out of a graph.

    Constants that depend on sizes become inputs, behind the others.
    """
    whole = planned.imported.model
    inner = [node for node in whole.graph.node if nodes is None or node.name in nodes]
    results = {t for node in inner for t in node.output}
    used = {t for node in inner for t in node.input} | set(writes)
    shown: list[str] = []
    for name in writes:
        # An input, or what is an output already, goes out as a copy.
        shown.append(name if name in results and name not in shown else f"{name}.copy")
    graph = onnx.GraphProto(name="part")
    graph.node.extend(inner)
    for name, output in zip(writes, shown, strict=True):
        if name != output:
            graph.node.add(op_type="Identity", name=output, input=[name], output=[output])
    by_size = planned.by_size
    graph.initializer.extend(i for i in whole.graph.initializer if i.name in used - set(by_size))
    for field, names, called in ((graph.input, reads, reads), (graph.output, writes, shown)):
        for name, output in zip(names, called, strict=True):
            dtype = planned.imported.view.tensors[name].dtype
            field.append(helper.make_tensor_value_info(output, dtype, planned.declared_shape(name)))
    for name, formula in by_size.items():
        if name in used:
            dtype = helper.np_dtype_to_tensor_dtype(formula.dtype)
            graph.input.append(helper.make_tensor_value_info(name, dtype, formula.declared_shape))
    return onnx.ModelProto(ir_version=whole.ir_version, opset_import=whole.opset_import, graph=graph)


class _WithConstants:
    """A program some of whose inputs are the constants of the sizes it runs at."""

    def __init__(self, program: AddressedProgram, constants: Sequence[torch.Tensor]) -> None:
        self._program, self._constants = program, constants
        self._read_at = list(map(address, constants))

    def run(self, read_at: Sequence[int], written_at: Sequence[int]) -> None:
        self._program.run([*read_at, *self._read_at], written_at)


def open_part(
    planned: Planned,
    nodes: frozenset[str] | None,
    reads: Mapping[str, torch.device],
    writes: Sequence[str],
    device: torch.device,
) -> AddressedProgram:
    """Load a part of a graph, unless that is done, for the sizes that it is planned at."""
    provider = provider_of(device)
    key = (nodes, tuple(reads), tuple(writes))
    if key not in planned.programs:
        model = part_of(planned, nodes, list(reads), writes)
        here = machine(provider, torch.get_num_threads() if provider == CPU else 0, planned.runtime)
        settings = LoadSettings(
            must_stay=False,
            spins=False,  # between two runs the processor belongs to torch's own threads
            device_id=device.index or 0,
            stream=torch.cuda.current_stream(device).cuda_stream if provider == CUDA else 0,
        )
        inputs, outputs = ([v.name for v in values] for values in (model.graph.input, model.graph.output))
        planned.programs[key] = Loaded(load(model, here, settings=settings), inputs, outputs)
    loaded = planned.programs[key]

    def place(name: str, tensor: str, where: torch.device) -> Place:
        dtype, shape = planned.imported.view.tensors[tensor].dtype, planned.shape(tensor)
        return Place(name, dtype, shape, provider_of(where), where.index or 0)

    read_from = [place(name, name, where) for name, where in reads.items()]
    written_to = [place(name, tensor, device) for name, tensor in zip(loaded.outputs, writes, strict=True)]
    constants = planned.constants(loaded.inputs[len(reads) :])
    read_from += [
        Place(name, int(helper.np_dtype_to_tensor_dtype(array.dtype)), array.shape, CPU)
        for name, array in constants.items()
    ]
    program = loaded.program.addressed(read_from, written_to)
    if not constants:
        return program
    return _WithConstants(program, [torch.from_numpy(array) for array in constants.values()])


def rehearsed(
    planned: Planned, program: AddressedProgram | None, reads: Sequence[str], writes: Sequence[str]
) -> Callable[[], None]:
    """Give what runs a program once on memory of its own: numbers from -1 to 1, indices of 0.

    The planned graph is of static sizes and on a CPU. `program` is a part of it; None where there is nothing
    to run.
    """
    rng = np.random.default_rng(0)

    def memory(name: str) -> Any:
        kind = helper.tensor_dtype_to_np_dtype(planned.imported.view.tensors[name].dtype)
        shape = planned.shape(name)
        if np.issubdtype(kind, np.integer) or kind == np.bool_:
            return np.zeros(shape, kind)
        return rng.uniform(-1, 1, shape).astype(kind)

    read, written = ([memory(name) for name in names] for names in (reads, writes))
    read_at, written_at = ([array.ctypes.data for array in arrays] for arrays in (read, written))

    def run(_alive: Any = (read, written)) -> None:
        if program is not None:
            program.run(read_at, written_at)

    return run


_NOTHING = torch.empty(16)  # ONNX Runtime refuses the null pointer of an empty tensor


def address(tensor: torch.Tensor) -> int:
    """Give a tensor's address; another where it has no elements."""
    return tensor.data_ptr() or _NOTHING.data_ptr()


def allocated(tensor: Tensor, device: torch.device) -> torch.Tensor:
    """Make room for what a program writes."""
    return torch.empty(tensor.layout.stored_shape, dtype=tensor.dtype, device=device)
