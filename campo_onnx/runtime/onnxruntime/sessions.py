"""Sessions that run a graph node by node as it is written, on one provider.

ONNX Runtime would otherwise fuse, fold and move nodes; then neither times nor precisions could be
told apart by node.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from campo_onnx.errors import CampoError, IndexOutOfRangeError, ModelError, UnsupportedModelError
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.registry import spec
from campo_onnx.runtime.api import LOAD_SETTINGS, LoadSettings
from campo_onnx.runtime.machine import CPU, CUDA, cores
from campo_onnx.runtime.onnxruntime.installed import ort
from campo_onnx.runtime.onnxruntime.kernels import RELEASE, is_in_release
from campo_onnx.runtime.onnxruntime.providers import ORT_NAME

state = ort.capi.onnxruntime_pybind11_state

RUNTIME_ERRORS = (
    *(state.EPFail, state.EngineError, state.Fail, state.InvalidArgument, state.InvalidGraph),
    *(state.InvalidProtobuf, state.ModelLoaded, state.NoModel, state.NotImplemented),
    *(state.RuntimeException, RuntimeError),
)
"""Errors that ONNX Runtime raises when it refuses to load or run a model."""

_CODES = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Fatal error: )?")
_NOT_REGISTERED = re.compile(r"(?P<op>\S+)\(-?\d+\) is not a registered function/op")
_ATEN = "org.pytorch.aten"
_MICROSOFT = "com.microsoft"
_SPIN_US = "100"  # longer than most nodes of a step take on one thread
_QUIET = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Provider on which ONNX Runtime put one node."""

    node: str
    op_type: str
    provider: str


_OUTSIDE = re.compile(
    r"out of (data )?bounds|within bounds|invalid index|out of range value in index", re.IGNORECASE
)
_NODE = re.compile(r"Name:'([^']*)'")


def failed_run(error: Exception) -> CampoError:
    """Make the error of a run that failed: for an index outside of what it looks up in one of its own."""
    said = str(error).strip()
    if not _OUTSIDE.search(said):
        return ModelError("the graph fails while it runs", why=said)
    node = _NODE.search(said)
    return IndexOutOfRangeError(
        f"an index that {node[1]!r} reads is out of range" if node else "an index is out of range",
        why=said.rpartition("Status Message: ")[2],
    )


def session_options(
    processor: str, *, threads: int = 0, folder: Path | None = None, trace_to: Path | None = None
) -> ort.SessionOptions:
    """Make options under which a graph runs one node after another, as it is written.

    `trace_to` is the prefix of the profile file to write, or None for no profile.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = threads or (cores() if processor == CPU else 0)
    options.inter_op_num_threads = 1
    options.log_severity_level = _QUIET
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if processor == CUDA:
        # From the second step on, patterns reserve all activations in one block beside what the first one
        # took: up to twice the memory, and under pressure a failed attempt in every step.
        options.enable_mem_pattern = False
    if trace_to is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(trace_to)
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return options


def open_session(
    model: onnx.ModelProto,
    processor: str,
    *,
    threads: int = 0,
    folder: Path | None = None,
    settings: LoadSettings = LOAD_SETTINGS,
    trace_to: Path | None = None,
) -> ort.InferenceSession:
    """Load a model on one provider.

    Arguments are as for :meth:`~campo_onnx.runtime.api.Runtime.load`. ONNX Runtime would put a node it has no
    kernel for on the CPU, and copy its tensors there and back, where not every node ``must_stay``.
    UnsupportedModelError says that it refuses the model, or runs a node of it elsewhere although it
    ``must_stay``.
    """
    options = session_options(processor, threads=threads, folder=folder, trace_to=trace_to)
    if not settings.spins:
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    if not settings.holds_memory:
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    provider: Any = ORT_NAME[processor]
    if processor == CUDA:
        if settings.must_stay:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        # By default the arena grows in powers of two, and two sessions at a time fill a small card.
        cuda = {"arena_extend_strategy": "kSameAsRequested"}
        cuda["enable_cuda_graph"] = "1" if settings.captures else "0"
        if settings.device_id:
            cuda["device_id"] = str(settings.device_id)
        if settings.channels_last:
            cuda["prefer_nhwc"] = "1"
        if settings.stream:
            cuda["user_compute_stream"] = str(settings.stream)
        provider = (provider, cuda)
    try:
        # Without a say, a provider that fails is replaced by the CPU, with a message on stdout.
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=[provider], enable_fallback=0
        )
    except RUNTIME_ERRORS as error:
        raise refused(error) from None
    if settings.must_stay and (elsewhere := placed_elsewhere(assignments(session), processor)):
        first = elsewhere[0]
        raise UnsupportedModelError(
            f"{len(elsewhere)} nodes would not run on the {processor} provider",
            why=f"ONNX Runtime puts {first.node!r} ({first.op_type}) on {first.provider}",
        )
    return session


def is_of_training_build(op: str) -> bool:
    """Whether an operator, as ``domain:name``, that a release does not know is one of the training build's.

    >>> is_of_training_build("com.microsoft:ConvGrad"), is_of_training_build("org.pytorch.aten:ATen")
    (True, True)
    >>> is_of_training_build("com.microsoft:Fancy"), is_of_training_build("my.domain:Fancy")
    (False, False)
    """
    key = OpKey.parse(op)
    return key.domain == _ATEN or (key.domain == _MICROSOFT and spec(key).is_known)


def refused(error: Exception) -> UnsupportedModelError:
    """Say why ONNX Runtime does not load a graph, and what to do."""
    unknown = _NOT_REGISTERED.search(str(error))
    if unknown and unknown["op"].startswith(_MICROSOFT) and is_in_release(OpKey.parse(unknown["op"])):
        return UnsupportedModelError(
            f"ONNX Runtime {ort.__version__} is too old for the graph",
            why=f"it has no {unknown['op']}, which release {RELEASE} has",
            remedy="Install a newer one, or export the step without a target: it is lowered where it runs.",
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
        why=first_line(error),
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


def first_line(error: Exception) -> str:
    """Give the first line of an error of ONNX Runtime's, without the codes in front of it."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return _CODES.sub("", line) or line
