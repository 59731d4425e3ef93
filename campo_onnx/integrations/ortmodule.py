"""Cost-aware mixed precision in a pipeline that trains with ONNX Runtime's ORTModule.

:func:`attach` lets a plan into the graph that ORTModule is about to differentiate. ONNX Runtime is
not imported here: whoever has an ORTModule has loaded it.
"""

import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from campo_onnx.errors import DeviceUnavailableError, UsageError
from campo_onnx.integrations.forward import PlannedGraph, plan_forward
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.list_file import resolve
from campo_onnx.optimize.lists.oplists import OpLists
from campo_onnx.optimize.strategies import DEFAULT_STRATEGY, strategy_called
from campo_onnx.planning.options import Options
from campo_onnx.targets.detect import resolve_target
from campo_onnx.targets.target import Target

SUPPORTED_VERSION = "1.19"
"""The ONNX Runtime whose ORTModule is known; 1.19.2 is the last release with a training build."""

_HOOKS = ("_detect_from_inputs", "_build_graph", "_create_execution_agent")
_NO_CAST_PROPAGATION = -1


class Attached:
    """A plan's place in an ORTModule: what was planned, and the way back.

    Made by :func:`attach`. A copy of the module, deep or pickled, takes a copy of this along.

    Attributes
    ----------
    options
        What is decided with.
    device_note
        How the device was chosen when it was ``"auto"``; else ``""``.
    graphs
        What was planned, an entry for each graph that ORTModule exported: one on the first step,
        more only if it is told to look for changes (``ORTMODULE_SKIPCHECK_POLICY``).
    failure
        Why the original graph trains on, or None.
    """

    # Methods called as those of ORTModule's manager stand in for them, as attributes of the instance.
    # They are bound methods rather than closures, because ORTModule pickles its manager's attributes.

    def __init__(self, manager: Any, options: Options, *, device_note: str, backward: bool) -> None:
        self.options = options
        self.device_note = device_note
        self.graphs: tuple[PlannedGraph, ...] = ()
        self.failure: Exception | None = None
        self._backward = backward
        self._manager = manager
        self._cast_propagation_level = manager._runtime_options.propagate_cast_ops_level
        self._is_planned = False  # whether the graph in work is ours

    def detach(self) -> None:
        """Give the module back as it was; its graph is built anew on the next step.

        Not between a forward pass and its backward pass, as with :func:`attach`.
        """
        for name in _HOOKS:
            self._manager.__dict__.pop(name, None)
        self._manager._runtime_options.propagate_cast_ops_level = self._cast_propagation_level
        _build_anew(self._manager)

    def __str__(self) -> str:
        if self.failure is not None:
            return f"not planned: {self.failure}"
        return "\n".join(map(str, self.graphs)) or "no training step was run yet"

    # --- in place of the manager's methods, in the order in which it calls them on a new graph ---

    def _detect_from_inputs(self, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        # The builder holds ORTModule's own graph by now, and this is the last call before it builds.
        self._original("_detect_from_inputs", inputs, kwargs)
        self._is_planned = False
        if self.failure is not None:
            return
        try:
            self._plan(inputs, kwargs)
        except Exception as error:  # the one place where we fail open: training goes on without us
            self._give_up(error)

    def _build_graph(self, config: Any) -> None:
        if not self._succeeds("_build_graph", config):
            self._original("_build_graph", self._manager._get_graph_transformer_config())

    def _create_execution_agent(self) -> None:
        if not self._succeeds("_create_execution_agent"):
            self._original("_build_graph", self._manager._get_graph_transformer_config())
            self._original("_create_execution_agent")

    def _succeeds(self, method: str, *arguments: Any) -> bool:
        """Call a method of the manager; give our graph up where it fails on it."""
        try:
            self._original(method, *arguments)
        except Exception as error:
            if not self._is_planned:
                raise
            self._give_up(error)
            return False
        return True

    # ---------------------------------------------------------------------------------------------

    def _original(self, method: str, *arguments: Any) -> None:
        getattr(type(self._manager), method)(self._manager, *arguments)

    def _plan(self, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        manager = self._manager
        exported = manager._graph_transition_manager._post_export_processed_model_info
        batch = exported.construct_inputs(inputs, kwargs, True, manager._device)
        shapes = {name: tuple(tensor.shape) for name, tensor in batch.items()}
        forward, gradient = self._built_in_fp32()
        planned = plan_forward(forward, gradient if self._backward else None, shapes, self.options)
        self._is_planned = planned.model is not None
        self._hand_over(planned.model or exported._post_export_processed_model)
        self.graphs += (planned,)

    def _built_in_fp32(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """Let ONNX Runtime fuse and differentiate its own graph, to see what is going to run."""
        manager = self._manager
        config = manager._get_graph_transformer_config()
        config.propagate_cast_ops_config.level = _NO_CAST_PROPAGATION
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "forward.onnx"
            config.optimized_pre_grad_filepath = str(path)
            manager._graph_builder.build(config)
            forward = onnx.load(path)
        return forward, onnx.load_model_from_string(manager._graph_builder.get_gradient_model())

    def _hand_over(self, forward: onnx.ModelProto) -> None:
        """Give the manager a fresh builder of a forward graph."""
        manager = self._manager
        # With our casts in place, ONNX Runtime would move them about by its own rules.
        level = _NO_CAST_PROPAGATION if self._is_planned else self._cast_propagation_level
        manager._runtime_options.propagate_cast_ops_level = level
        exported = manager._graph_transition_manager._post_export_processed_model_info
        own = exported._post_export_processed_model
        exported._post_export_processed_model = forward
        try:
            manager._initialize_graph_builder(exported)
        finally:
            exported._post_export_processed_model = own

    def _give_up(self, error: Exception) -> None:
        self.failure = error
        if self._is_planned:
            self.graphs = self.graphs[:-1]
        self._is_planned = False
        exported = self._manager._graph_transition_manager._post_export_processed_model_info
        self._hand_over(exported._post_export_processed_model)
        warnings.warn(
            f"campo-onnx leaves this ORTModule in FP32, because planning failed: {error}",
            RuntimeWarning,
            stacklevel=3,
        )


def attach(
    ort_module: Any,
    *,
    device: str | Target = "auto",
    strategy: str = DEFAULT_STRATEGY,
    lists: str | OpLists | None = None,
    precision: Precision = Precision.FP16,
    keep_fp32: Sequence[str] = (),
    backward: bool = True,
) -> Attached:
    """Train an ORTModule in the mixed precision that is fastest on a device.

    The plan is made on the next training step, from the sizes of its batch, and goes into the
    forward graph; ONNX Runtime's gradient builder derives the casts of the backward graph.
    Parameters and their gradients stay FP32, and so do inputs, outputs and evaluation mode. Scale
    the loss with ``torch.amp.GradScaler``, as with any FP16 training.

    If planning fails, or ONNX Runtime refuses the planned graph, the original one trains on and one
    ``RuntimeWarning`` says why; :attr:`Attached.failure` keeps the error.

    Parameters
    ----------
    ort_module
        The ``onnxruntime.training.ORTModule``; not one that is wrapped in something else.
    device
        Device to plan for: a name, ``"auto"`` for this machine's GPU, or a :class:`Target`.
    strategy
        Name of a strategy.
    lists
        Op lists, or the name of a preset or path of a list file; None takes the strategy's own.
    precision
        The low precision.
    keep_fp32
        Regular expressions for names or operators of forward nodes that stay FP32.
    backward
        Whether a forward node is decided together with its backward nodes, at the price of building
        the gradient graph twice on the first step. Otherwise forward times decide alone.

    Raises
    ------
    UsageError
        If it is no ORTModule, or a plan is attached already, or a name is unknown.
    DeviceUnavailableError
        If this version of ONNX Runtime is not supported.
    """
    manager = _training_manager(ort_module)
    own_lists = strategy_called(strategy).default_lists
    chosen, note = resolve_target(device) if isinstance(device, str) else (device, "")
    options = Options(
        target=chosen,
        lists=lists if isinstance(lists, OpLists) else resolve(lists or own_lists),
        strategy=strategy,
        low=precision,
        keep_fp32=tuple(keep_fp32),
        # A later batch may have another size; and the gradient of a Slice lacks FP16 kernels.
        pads=False,
    )
    attached = Attached(manager, options, device_note=note, backward=backward)
    for name in _HOOKS:
        setattr(manager, name, getattr(attached, name))
    _build_anew(manager)
    return attached


def _build_anew(manager: Any) -> None:
    """Make the manager export, differentiate and load the network again on the next step."""
    manager._graph_transition_manager._exported_model_info = None
    manager._execution_agent = None


def _training_manager(ort_module: Any) -> Any:
    """Find what builds the training graph of an ORTModule."""
    named = [f"{base.__module__}.{base.__qualname__}" for base in type(ort_module).__mro__]
    if "onnxruntime.training.ortmodule.ortmodule.ORTModule" not in named:
        wrapped = "Pass the ORTModule inside it: .module." if hasattr(ort_module, "module") else ""
        raise UsageError(
            f"{type(ort_module).__name__} is not an ORTModule",
            remedy=wrapped or "Wrap the network first: ORTModule(network).",
        )
    version = sys.modules["onnxruntime"].__version__
    if version.split(".")[:2] != SUPPORTED_VERSION.split("."):
        raise DeviceUnavailableError(
            f"ORTModule of ONNX Runtime {version} is not supported",
            why=f"the plan goes in at private methods, known for {SUPPORTED_VERSION}",
            remedy="Install onnxruntime-training 1.19.2, or optimize the exported graph as a file.",
        )
    if not hasattr(ort_module._torch_module, "_execution_manager"):
        raise UsageError(
            "this ORTModule runs PyTorch instead of ONNX Runtime",
            why="its initialization failed",
            remedy="Set ORTMODULE_FALLBACK_POLICY=FALLBACK_DISABLE to see the error.",
        )
    manager = ort_module._torch_module._execution_manager(True)
    if _HOOKS[0] in manager.__dict__:
        raise UsageError("a plan is attached to this ORTModule already", remedy="Detach that one first.")
    return manager
