"""Sessions that read and write memory which somebody else owns: nothing is copied on the way in or out."""

import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from campo_onnx.runtime.api import Place
from campo_onnx.runtime.onnxruntime.sessions import RUNTIME_ERRORS, failed_run


class AddressedSession:
    """A session that is run on addresses, from any thread; one of them runs at a time.

    `reads` and `writes` are its inputs and outputs, in the order in which :meth:`run` is given addresses.
    """

    spent_s: ClassVar[float] = 0.0
    """CPU time in ONNX Runtime, of all such sessions of this process so far, in seconds."""

    def __init__(self, session: Any, reads: Sequence[Place], writes: Sequence[Place]) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._reads, self._writes = tuple(reads), tuple(writes)
        self._read_at, self._written_at = [0] * len(reads), [0] * len(writes)
        self._lock = threading.Lock()

    def run(self, read_at: Sequence[int], written_at: Sequence[int]) -> None:
        """Run the graph; see :class:`~campo_onnx.runtime.api.AddressedProgram`."""
        with self._lock:
            self._bind(read_at, written_at)
            began = time.process_time()
            try:
                self._session.run_with_iobinding(self._binding)
            except RUNTIME_ERRORS as error:
                raise failed_run(error) from None
            finally:
                AddressedSession.spent_s += time.process_time() - began

    def _bind(self, read_at: Sequence[int], written_at: Sequence[int]) -> None:
        # Binding takes microseconds a tensor; weights and most allocations lie where they lay before.
        for places, addresses, before, bind in (
            (self._reads, read_at, self._read_at, self._binding.bind_input),
            (self._writes, written_at, self._written_at, self._binding.bind_output),
        ):
            for i, (place, address) in enumerate(zip(places, addresses, strict=True)):
                if before[i] != address:
                    bind(place.name, place.processor, place.device_id, place.dtype, place.shape, address)
                    before[i] = address
