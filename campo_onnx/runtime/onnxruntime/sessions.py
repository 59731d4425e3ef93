"""Sessions that run a graph node by node as it is written, on one provider.

ONNX Runtime would otherwise fuse, fold and move nodes; then neither times nor precisions could be
told apart by node.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.files import temporary_folder
from campo_onnx.ops.kernels import RELEASE, is_in_release
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.registry import spec
from campo_onnx.runtime.onnxruntime.installed import ort
from campo_onnx.runtime.onnxruntime.providers import ORT_NAME, Machine

state = ort.capi.onnxruntime_pybind11_state

RUNTIME_ERRORS = (
    *(state.EPFail, state.EngineError, state.Fail, state.InvalidArgument, state.InvalidGraph),
    *(state.InvalidProtobuf, state.ModelLoaded, state.NoModel, state.NotImplemented),
    *(state.RuntimeException, RuntimeError),
)
"""What ONNX Runtime raises when it refuses to load or run a model."""

_CODES = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Fatal error: )?")
_NOT_REGISTERED = re.compile(r"(?P<op>\S+)\(-?\d+\) is not a registered function/op")
_ATEN = "org.pytorch.aten"
_MICROSOFT = "com.microsoft"
_SPIN_US = "100"  # longer than most nodes of a step take on one thread
_WRONG_RULES = ["Pad_Fusion"]
"""Zeros around an image become the padding of a MaxPool, which is lower than any number."""
_ERRORS_ONLY = 3
_QUIET = 4
_TYPES = {
    "tensor(float)": TensorProto.FLOAT,
    "tensor(float16)": TensorProto.FLOAT16,
    "tensor(bfloat16)": TensorProto.BFLOAT16,
    "tensor(int64)": TensorProto.INT64,
    "tensor(int32)": TensorProto.INT32,
    "tensor(bool)": TensorProto.BOOL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Where ONNX Runtime put one node."""

    node: str
    op_type: str
    provider: str


def session_options(machine: Machine, *, trace_to: Path | None = None) -> ort.SessionOptions:
    """Make options under which a graph runs one node after another, as it is written.

    Parameters
    ----------
    machine
        Where it is to run, with how many threads.
    trace_to
        Prefix of the profile file to write, or None for no profile.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = machine.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _QUIET
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if machine.provider == "cuda":
        # From the second step on, patterns reserve all activations in one block beside what the first one
        # took: up to twice the memory, and under pressure a failed attempt in every step.
        options.enable_mem_pattern = False
    if trace_to is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(trace_to)
    return options


def open_session(
    model: onnx.ModelProto,
    machine: Machine,
    *,
    folder: Path | None = None,
    trace_to: Path | None = None,
    cuda_graph: bool = False,
    strict: bool = True,
    holds_memory: bool = True,
    spins: bool = True,
) -> ort.InferenceSession:
    """Load a model on one provider.

    Parameters
    ----------
    model
        The model; nodes have unique names.
    machine
        Where to run it.
    folder
        Folder of the model's external data.
    trace_to
        Prefix of the profile file, or None.
    cuda_graph
        Whether CUDA captures the launches and replays them.
    strict
        Whether every node must run on the provider. ONNX Runtime would otherwise put a node it
        has no kernel for on the CPU, and copy its tensors there and back.
    holds_memory
        Whether memory that was freed is held for the next run; for a single run it need not be.
    spins
        Whether threads of a CPU that have nothing to do wait for work at full speed until the next run;
        otherwise for a moment, and never between runs.

    Raises
    ------
    UnsupportedModelError
        If ONNX Runtime refuses the model, or runs a node of it elsewhere although `strict`.
    """
    options = _options_for(machine, folder, trace_to)
    if not spins:
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    if not holds_memory:
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    name = ORT_NAME[machine.provider]
    provider: Any = name
    if machine.provider == "cuda":
        if strict:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        # By default the arena grows in powers of two, and two sessions at a time fill a small card.
        memory = {"arena_extend_strategy": "kSameAsRequested"}
        provider = (name, {"enable_cuda_graph": "1" if cuda_graph else "0", **memory})
    try:
        # Without a say, a provider that fails is replaced by the CPU, with a message on stdout.
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=[provider], enable_fallback=0
        )
    except RUNTIME_ERRORS as error:
        raise refused(error) from None
    if strict and (elsewhere := placed_elsewhere(assignments(session), machine.provider)):
        first = elsewhere[0]
        raise UnsupportedModelError(
            f"{len(elsewhere)} nodes would not run on the {machine.provider} provider",
            why=f"ONNX Runtime puts {first.node!r} ({first.op_type}) on {first.provider}",
        )
    return session


def is_of_training_build(op: str) -> bool:
    """Whether an operator, as ``domain:name``, that a release does not know is one of the training build's.

    Examples
    --------
    >>> is_of_training_build("com.microsoft:ConvGrad"), is_of_training_build("org.pytorch.aten:ATen")
    (True, True)
    >>> is_of_training_build("com.microsoft:Fancy"), is_of_training_build("my.domain:Fancy")
    (False, False)
    """
    key = OpKey.parse(op)
    return key.domain == _ATEN or (key.domain == _MICROSOFT and spec(key).is_known)


def _options_for(machine: Machine, folder: Path | None, trace_to: Path | None = None) -> ort.SessionOptions:
    options = session_options(machine, trace_to=trace_to)
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return options


def refused(error: Exception) -> UnsupportedModelError:
    """Say why ONNX Runtime does not load a graph, and what to do."""
    unknown = _NOT_REGISTERED.search(str(error))
    if unknown and unknown["op"].startswith(_MICROSOFT) and is_in_release(OpKey.parse(unknown["op"])):
        return UnsupportedModelError(
            f"ONNX Runtime {ort.__version__} is too old for the graph",
            why=f"it has no {unknown['op']}, which release {RELEASE} has",
            remedy='Install a newer one, or export the step with target="standard".',
        )
    if unknown and is_of_training_build(unknown["op"]):
        return UnsupportedModelError(
            "the graph needs a training build of ONNX Runtime",
            why=f"{unknown['op']} has no kernel in the inference build that is installed",
            remedy="Run it where ORTModule runs (onnxruntime-training), or export the step with "
            "campo_onnx.export, which writes standard operators. Planning it needs neither: `campo-onnx "
            "optimize` and `compare` take it as it is.",
        )
    return UnsupportedModelError(
        "ONNX Runtime cannot load the graph",
        why=_first_line(error),
        remedy="Export with standard operators at opset 20 (gradients as well), and check the file with "
        "onnx.checker.",
    )


def assignments(session: ort.InferenceSession) -> tuple[Assignment, ...]:
    """List where ONNX Runtime put each node."""
    return tuple(
        Assignment(node=node.name, op_type=node.op_type, provider=part.ep_name)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    )


def placed_elsewhere(assigned: Iterable[Assignment], provider: str) -> tuple[Assignment, ...]:
    """Nodes that run elsewhere than on `provider`; copies between providers are not listed as nodes."""
    name = ORT_NAME[provider]
    return tuple(a for a in assigned if a.provider != name)


def optimized_nodes(
    model: onnx.ModelProto, machine: Machine, folder: Path | None = None
) -> tuple[onnx.NodeProto, ...]:
    """List the nodes that will run, those that ONNX Runtime inserts included.

    Copies between providers (``Memcpy...``) and Casts of its own show only in the graph as it is
    about to run, so that graph is written out and read back.

    Parameters
    ----------
    model, machine, folder
        As for :func:`open_session`.
    """
    written = _written_by_runtime(model, machine, _options_for(machine, folder))
    return tuple(written.graph.node)


def cleaned_up(model: onnx.ModelProto, machine: Machine, folder: Path | None = None) -> onnx.ModelProto:
    """Let ONNX Runtime's optimizer rewrite a graph by the rules that hold on every provider.

    External data that it leaves as it is stays where it is.

    Parameters
    ----------
    model, machine, folder
        As for :func:`open_session`.

    Raises
    ------
    UnsupportedModelError
        If ONNX Runtime refuses the model.
    UsageError
        If there is no room for a temporary file.
    """
    options = _options_for(machine, folder)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return _written_by_runtime(model, machine, options)


def _written_by_runtime(
    model: onnx.ModelProto, machine: Machine, options: ort.SessionOptions
) -> onnx.ModelProto:
    """Load a model, and read back what ONNX Runtime's optimizer made of it."""
    given = model.SerializeToString()

    def load() -> None:
        ort.InferenceSession(
            given,
            options,
            providers=[ORT_NAME[machine.provider]],
            enable_fallback=0,
            disabled_optimizers=_WRONG_RULES,
        )

    with temporary_folder() as scratch:
        written = scratch / "optimized.onnx"
        options.optimized_model_filepath = str(written)
        try:
            load()
        except RUNTIME_ERRORS as error:
            # A full disk and a model that is refused raise the same; only the second does without the file.
            options.optimized_model_filepath = ""
            try:
                load()
            except RUNTIME_ERRORS:
                raise refused(error) from None
            raise OSError(_first_line(error)) from None
        return onnx.load(written, load_external_data=False)


def bind(
    session: ort.InferenceSession, feeds: Mapping[str, NDArray[Any]], provider: str
) -> Callable[[], None]:
    """Put inputs on the device once, and return what runs one step on them.

    Parameters
    ----------
    session
        A loaded model.
    feeds
        A value for every input. Arrays of 16-bit types are taken as they are.
    provider
        Where inputs and outputs live.

    Returns
    -------
    callable
        Runs one step and waits for it; results stay on the device. It raises
        :class:`UnsupportedModelError` if a node fails.

    Raises
    ------
    UnsupportedModelError
        If inputs and outputs do not fit the graph, or the device's memory.
    """
    try:
        binding, kept = _bound(session, feeds, provider)
    except RUNTIME_ERRORS as error:  # the device's memory is full, for one
        raise UnsupportedModelError(
            "ONNX Runtime cannot take the graph's inputs and outputs", why=_first_line(error)
        ) from None

    def step(_alive: Any = (kept, feeds)) -> None:
        try:
            session.run_with_iobinding(binding)
        except RUNTIME_ERRORS as error:
            raise UnsupportedModelError(
                "ONNX Runtime failed to run the graph", why=_first_line(error)
            ) from None

    return step


def _bound(
    session: ort.InferenceSession, feeds: Mapping[str, NDArray[Any]], provider: str
) -> tuple[ort.IOBinding, Mapping[str, ort.OrtValue]]:
    """Bind inputs, which are copied to the device, and outputs."""
    binding = session.io_binding()
    kept = {}  # ONNX Runtime does not keep the arrays alive
    for name, array in feeds.items():
        kept[name] = ort_value(array)
        binding.bind_ortvalue_input(name, kept[name])
    for output in session.get_outputs():
        dtype = _TYPES.get(output.type)
        if dtype is not None and all(isinstance(size, int) for size in output.shape):
            # A fixed address, which CUDA graphs need, and no allocation inside the step.
            value = ort.OrtValue.ortvalue_from_shape_and_type(output.shape, int(dtype), provider, 0)
            binding.bind_ortvalue_output(output.name, value)
        else:
            binding.bind_output(output.name, provider)
    binding.synchronize_inputs()  # copies may go on after the calls that began them
    return binding, kept


def ort_value(array: NDArray[Any]) -> ort.OrtValue:
    """Take an array as a value of a CPU, bfloat16 included; the array stays the memory of it."""
    dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    if dtype != TensorProto.BFLOAT16:
        return ort.OrtValue.ortvalue_from_numpy(array)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), int(dtype))


def _first_line(error: Exception) -> str:
    """The first line of an error of ONNX Runtime's, without the codes in front of it."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return _CODES.sub("", line) or line
