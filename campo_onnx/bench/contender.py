"""One graph made ready to take steps, on values that all graphs share."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.bench.subject import Subject
from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.ir.view import GraphView
from campo_onnx.runtime.feeds import Feeds, synthesize
from campo_onnx.runtime.providers import Machine
from campo_onnx.runtime.run import empty_on_device, on_device, run_bound
from campo_onnx.runtime.sessions import assignments, open_session, strays
from campo_onnx.runtime.timing import Step
from campo_onnx.training.step_interface import TensorSpec

_CUDA_GRAPH = 1  # which of its captured graphs a session replays; it has one


class Buffers:
    """Inputs and outputs of the step on the device, once for all graphs.

    Steps run one after another and read what they are given, so none spoils another's values;
    sharing them leaves the device's memory to what the graphs themselves need.

    Parameters
    ----------
    view
        One of the graphs; all have the same interface.
    feeds
        A value for every input; made up where None.
    machine
        Where they live.
    seed
        Of made-up values.

    Raises
    ------
    UsageError
        If a value is missing, unknown or does not fit.
    UnsupportedModelError
        If an input has no static shape, or a type that cannot be bound.
    """

    def __init__(
        self, view: GraphView, feeds: Mapping[str, NDArray[Any]] | None, machine: Machine, *, seed: int
    ) -> None:
        for name in view.inputs:
            if view.tensors[name].dtype == TensorProto.BFLOAT16:
                raise UnsupportedModelError(
                    f"the input {name!r} is bfloat16",
                    why="NumPy has no such type",
                    remedy="Export in FP32; optimizing to bf16 keeps the interface.",
                )
        values = synthesize(view, seed=seed) if feeds is None else _fitting(feeds, view)
        self.inputs = {name: on_device(value, machine) for name, value in values.items()}
        self.outputs = {name: _room(view, name, machine) for name in view.outputs}
        self.nbytes = int(sum(view.tensors[name].nbytes for name in {*view.inputs, *view.outputs}))


def open_contender(
    subject: Subject, buffers: Buffers, machine: Machine, *, cuda_graph: bool
) -> tuple[Step, str]:
    """Load a graph and bind it.

    Parameters
    ----------
    subject
        The graph.
    buffers
        Its inputs and outputs.
    machine
        Where to run.
    cuda_graph
        Whether CUDA captures the step once and replays it.

    Returns
    -------
    tuple
        What takes one step and waits for it, and a remark on nodes that run elsewhere than on the
        provider (``""`` if none does).

    Raises
    ------
    campo_onnx.errors.CampoError
        If ONNX Runtime refuses the graph.
    """
    imported = subject.imported
    session = open_session(
        imported.model, machine, folder=imported.folder, cuda_graph=cuda_graph, strict=cuda_graph
    )
    binding = session.io_binding()
    for name, value in buffers.inputs.items():
        binding.bind_ortvalue_input(name, value)
    for name, room in buffers.outputs.items():
        if room is None:
            binding.bind_output(name, machine.provider)
        else:
            binding.bind_ortvalue_output(name, room)
    binding.synchronize_inputs()  # copies may go on after the calls that began them
    captured = _CUDA_GRAPH if cuda_graph else None
    stray = strays(assignments(session), machine.provider)
    remark = ""
    if stray:
        remark = (
            f"{len(stray)} nodes run elsewhere than on {machine.provider} or copy between "
            f"providers, the first is {stray[0].node!r} ({stray[0].op_type})"
        )
    return lambda: run_bound(session, binding, captured), remark


def _room(view: GraphView, name: str, machine: Machine) -> Any:
    """Room for an output; None where its size is unknown, and ONNX Runtime allocates in every step."""
    info = view.tensors[name]
    if info.shape is None or info.dtype == TensorProto.UNDEFINED:
        return None
    return empty_on_device(info.shape, info.dtype, machine)


def _fitting(feeds: Mapping[str, NDArray[Any]], view: GraphView) -> Feeds:
    missing = [name for name in view.inputs if name not in feeds]
    strange = [name for name in feeds if name not in view.inputs]
    if missing or strange:
        why = [f"they lack {', '.join(missing)}"] if missing else []
        why += [f"the graph has no input {', '.join(strange)}"] if strange else []
        raise UsageError(
            "the inputs given do not fit the graph",
            why="; ".join(why),
            remedy="Give one array per input, named after it.",
        )
    fitting = {}
    for name in view.inputs:
        info = view.tensors[name]
        if info.shape is None:
            raise UnsupportedModelError(
                f"the input {name!r} has no static shape", remedy="Bind its dimensions with --dim."
            )
        fitting[name] = TensorSpec(name=name, dtype=info.dtype, shape=info.shape).fitted(feeds[name])
    return fitting
