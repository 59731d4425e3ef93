"""Sessions that read and write memory which somebody else owns: nothing is copied on the way in or out."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.runtime.onnxruntime.installed import ort
from campo_onnx.runtime.onnxruntime.providers import ORT_NAME, Machine
from campo_onnx.runtime.onnxruntime.sessions import RUNTIME_ERRORS, session_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What lies at an address.

    Parameters
    ----------
    name
        The input or output.
    dtype
        ``TensorProto.DataType``.
    shape
        Static dimensions; elements lie one after the other, the last axis fastest.
    provider, device_id
        On which device: ``"cpu"`` or ``"cuda"``, and the number of the GPU.
    """

    name: str
    dtype: int
    shape: tuple[int, ...]
    provider: str
    device_id: int = 0


class AddressedSession:
    """A loaded graph that is run on addresses, node by node as it is written.

    ONNX Runtime's fusions look through Casts, and one of them is wrong: a transposed matrix times a vector.

    It may be run from several threads, one of which runs at a time.

    Parameters
    ----------
    model
        The graph; every shape is static.
    machine
        Where it runs, with how many threads.
    reads, writes
        Its inputs and outputs, in the order in which :meth:`run` is given addresses.
    stream
        Address of the CUDA stream that the graph runs on, in order with what else was put there; 0 for
        a stream of its own.

    Raises
    ------
    UnsupportedModelError
        If ONNX Runtime refuses the graph.
    """

    spent_s: ClassVar[float] = 0.0
    """CPU time in ONNX Runtime, of all such sessions of this process so far, in seconds."""

    def __init__(
        self,
        model: onnx.ModelProto,
        machine: Machine,
        reads: Sequence[Place],
        writes: Sequence[Place],
        *,
        stream: int = 0,
    ) -> None:
        options = session_options(machine)
        # Between two runs the processor belongs to the framework's own threads.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        settings = {}
        if machine.provider == "cuda":
            settings["arena_extend_strategy"] = "kSameAsRequested"
            device_id = next((p.device_id for p in writes if p.provider == "cuda"), 0)
            settings["device_id"] = str(device_id)
            if stream:
                settings["user_compute_stream"] = str(stream)
        try:
            self._session = ort.InferenceSession(
                model.SerializeToString(),
                options,
                providers=[(ORT_NAME[machine.provider], settings)],
                enable_fallback=0,
            )
        except RUNTIME_ERRORS as error:
            raise UnsupportedModelError("ONNX Runtime cannot load the graph", why=_line(error)) from None
        self._binding = self._session.io_binding()
        self._reads, self._writes = tuple(reads), tuple(writes)
        self._read_at, self._written_at = [0] * len(reads), [0] * len(writes)
        self._lock = threading.Lock()

    def run(self, read_at: Sequence[int], written_at: Sequence[int]) -> None:
        """Run the graph on memory that stays valid meanwhile.

        Parameters
        ----------
        read_at, written_at
            An address for each input and output; not 0, not even for empty ones.

        Raises
        ------
        UnsupportedModelError
            If a node fails.
        """
        with self._lock:
            self._bind(read_at, written_at)
            began = time.process_time()
            try:
                self._session.run_with_iobinding(self._binding)
            except RUNTIME_ERRORS as error:
                raise UnsupportedModelError(
                    "ONNX Runtime failed to run the graph", why=_line(error)
                ) from None
            finally:
                AddressedSession.spent_s += time.process_time() - began

    def _bind(self, read_at: Sequence[int], written_at: Sequence[int]) -> None:
        # Binding takes microseconds a tensor; weights and most allocations lie where they lay before.
        for i, (place, address) in enumerate(zip(self._reads, read_at, strict=True)):
            if self._read_at[i] != address:
                self._binding.bind_input(
                    place.name, place.provider, place.device_id, place.dtype, place.shape, address
                )
                self._read_at[i] = address
        for i, (place, address) in enumerate(zip(self._writes, written_at, strict=True)):
            if self._written_at[i] != address:
                self._binding.bind_output(
                    place.name, place.provider, place.device_id, place.dtype, place.shape, address
                )
                self._written_at[i] = address


def _line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
