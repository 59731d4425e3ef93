"""A runtime as a value: its name, its capabilities, and the programs that it loads.

Everything above this room runs graphs through these types. Sessions, bindings and names of execution
providers stay in the folder of their runtime.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from campo_onnx.errors import DeviceUnavailableError
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.overhead import Overhead
from campo_onnx.runtime.timing import Step, Timing

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from campo_onnx.ops.signature import Signature


class Support(Enum):
    """A runtime's support of an operator in a precision."""

    NATIVE = "native"  # its kernel computes in that precision, or in it with FP32 accumulation
    STORAGE = "storage"  # bytes are low, arithmetic is FP32
    UPCAST = "upcast"  # the runtime puts Casts of its own around an FP32 kernel
    REFUSED = "refused"  # a graph with such a node does not load


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Capabilities of a runtime besides running a graph."""

    captures: bool  # whether a step can be captured once and replayed without launches (CUDA graphs)
    # whether it runs on memory that the caller owns, at addresses that may change between two runs
    takes_addresses: bool
    traces_nodes: bool  # whether it times each node of a whole step
    fuses_casts: bool  # whether a Cast beside an elementwise operator costs no launch of its own
    has_low_cpu_kernels: bool  # whether it computes in low precision on CPUs that have units for it
    multiplies_in_tf32: bool  # whether FP32 products run as TF32 where the hardware has it
    # whether a NaN survives Relu, Max and MaxPool, so that a finite loss means finite activations
    keeps_nan: bool
    # whether its kernel of MaxPool with indices takes several times as long as comparisons do
    indexes_pools_slowly: bool = False
    takes_any_size: bool = True  # whether a program runs graphs whose inputs change their sizes
    # whether each node is executed by itself; else kernels compute several, and some nodes are never executed
    runs_each_node: bool = True
    takes_gpu_addresses: bool = False  # whether that memory may be a GPU's
    usual_precision: Precision | None = None  # taken where the user names none; None: the first not refused
    # whether the result of each node is rounded to its type; else some stay in FP32 within a kernel
    rounds_as_written: bool = True
    # whether graphs may have operators of its own, beside those of the standard
    own_operators: bool = False
    # whether it runs convolutions and their gradients as the portable form has them; else the form is chosen
    convolves_portable: bool = False
    # whether it is taken where nobody names a runtime
    is_chosen_unasked: bool = True
    # low precisions in which nothing may be planned for it, each with the reason
    refused_precisions: tuple[tuple[Precision, str], ...] = ()

    def refusal(self, precision: Precision) -> str:
        """Say why nothing may be planned in a precision; empty if it may."""
        return dict(self.refused_precisions).get(precision, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Choices at loading that change how a program runs, not what it computes."""

    captures: bool = False  # capture the step once and replay it
    must_stay: bool = True  # refuse a graph of which some node would run on another processor
    spins: bool = True  # let threads wait busily between two runs; not where several programs take turns
    holds_memory: bool = True  # keep working memory between runs
    traces: bool = False  # be ready for `Program.node_times`, which costs time in every run
    device_id: int = 0  # number of the GPU
    # address of the CUDA stream that the program runs on, in order with what else is put there; 0 for a
    # stream of its own
    stream: int = 0
    # let convolutions compute with channels last (NHWC), where the runtime has such kernels
    channels_last: bool = False


LOAD_SETTINGS = LoadSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTime:
    """Time of one executed node.

    `nodes` are the ONNX nodes that it computes; none for what the runtime added and no node consumes.
    """

    nodes: tuple[str, ...]
    kernel: str
    precision: Precision | None  # precision of its arithmetic; None where the runtime does not tell
    time: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Times of the nodes of a step, over the faster half of repeated steps."""

    nodes: tuple[NodeTime, ...]  # executed nodes, in execution order
    step: Timing
    accounted: float  # share of a step that its own node times add up to, median over the steps
    interrupted: bool = False


class Place(NamedTuple):
    """Type of the tensor at an address: its elements lie one after the other, the last axis fastest.

    The processor is ``"cpu"`` or ``"cuda"``, and the number that of the GPU.
    """

    name: str
    dtype: int  # ``TensorProto.DataType``
    shape: tuple[int, ...]
    processor: str
    device_id: int = 0


class AddressedProgram(Protocol):
    """A program that runs on addresses."""

    def run(self, read_at: Sequence[int], written_at: Sequence[int]) -> None:
        """Run it once on memory that stays valid meanwhile; may be called from several threads.

        Addresses are not 0, not even those of empty tensors.
        """


class Tensor(Protocol):
    """Memory of one tensor on the processor that a program runs on; its address never changes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Static dimensions."""

    @property
    def dtype(self) -> int:
        """``TensorProto.DataType`` of its elements."""

    def read(self) -> "NDArray[Any]":
        """Copy it to the host."""

    def write(self, array: "NDArray[Any]") -> None:
        """Copy an array of its shape and type to it."""

    def shared(self) -> "NDArray[Any] | None":
        """Give the memory itself as an array; None where it is not the host's."""

    def slice(self, first: int, shape: Sequence[int]) -> "Tensor":
        """Give the tensor of a shape that begins at an element, in the same memory."""


class Program(Protocol):
    """A loaded graph."""

    @property
    def note(self) -> str:
        """Say what runs otherwise than asked: nodes on another processor, or a graph that is not compiled.

        Empty if nothing does.
        """

    def bound(self, reads: Mapping[str, Tensor], writes: Mapping[str, Tensor]) -> Step:
        """Bind every input, and outputs, by their names in the ONNX graph; return what runs one step.

        A program may be bound several times; bindings keep their tensors alive and are run one at a time. An
        output that is left out is allocated by the runtime. UnsupportedModelError says that a name is
        missing, or a tensor does not fit. The step raises ModelError if a node fails.
        """

    def placed(self, feeds: "Mapping[str, NDArray[Any]]") -> Step:
        """Put inputs on the processor once and return what runs one step on them; results stay there.

        On a CPU the arrays may be bound as they are. Raises as :meth:`bound` does.
        """

    def addressed(self, reads: Sequence[Place], writes: Sequence[Place]) -> AddressedProgram:
        """Run on memory of the caller; only where the runtime ``takes_addresses``."""

    def run(self, feeds: "Mapping[str, NDArray[Any]]") -> "dict[str, NDArray[Any]]":
        """Run it once on arrays; its outputs, by name, belong to the caller."""

    def node_times(
        self,
        feeds: "Mapping[str, NDArray[Any]]",
        *,
        repeats: int,
        warmup: int = 2,
        on_step: Callable[[], None] | None = None,
    ) -> StepTimes:
        """Time each executed node; only where the runtime ``traces_nodes``, once for each program.

        `repeats` are steps that count, `warmup` those before them that do not.
        """

    def executed(self) -> Mapping[str, Precision]:
        """Give the precision in which ONNX nodes are computed, by name, where the runtime tells."""


class Runtime(Protocol):
    """Something that runs ONNX graphs. Making one imports nothing heavy: plans do not need it installed.

    One that only plans inherits what would load and run graphs: it refuses, for its :meth:`problem`.
    """

    @property
    def name(self) -> str:
        """Short name, as after ``--runtime``."""

    @property
    def processors(self) -> tuple[str, ...]:
        """Kinds of processors that it has kernels for: ``"cpu"``, ``"cuda"``, ``"intel_gpu"``."""

    @property
    def capabilities(self) -> Capabilities:
        """Its capabilities."""

    @property
    def version(self) -> str:
        """Version of the installed package."""
        raise self._refusal()

    @property
    def installed(self) -> str:
        """Version of an installed package that is new enough, told without loading it; empty if none is."""
        return ""

    def problem(self, processor: str) -> str:
        """Say why it cannot run on ``"cpu"`` or ``"cuda"`` here; empty if it can."""

    def machine(self, processor: str, threads: int = 0) -> Machine:
        """Identify this machine, as timings are filed under it.

        `threads` are those of one node on a CPU; 0 takes all cores that this process may use.
        """
        raise self._refusal()

    def overhead(self, processor: str, *, captured: bool = False) -> Overhead:
        """Say what it adds to kernels, or would as a captured CUDA graph."""

    def support(self, signature: "Signature", processor: str, precision: Precision) -> Support:
        """Say how it runs a node in a precision."""

    def sums_low(self, signature: "Signature", processor: str, precision: Precision) -> bool:
        """Whether sums of such a node are accumulated in the low precision itself."""
        return False

    def load(
        self,
        model: "onnx.ModelProto",
        processor: str,
        *,
        threads: int = 0,
        folder: Path | None = None,
        settings: LoadSettings = LOAD_SETTINGS,
    ) -> Program:
        """Load a graph.

        `threads`: threads of one node on a CPU; 0 takes all cores that this process may use.
        `folder`: folder of the model's external data.

        Raises UnsupportedModelError if the runtime refuses the graph; the message names
        every refused operator.
        """
        raise self._refusal()

    def tensor(self, shape: Sequence[int], dtype: int, processor: str) -> Tensor:
        """Allocate a tensor of zeros, aligned for any kernel."""
        raise self._refusal()

    def _refusal(self) -> DeviceUnavailableError:
        why = self.problem(self.processors[0])
        return DeviceUnavailableError(
            f"{self.name} cannot be used", why=why, remedy="Take --costs datasheet."
        )
