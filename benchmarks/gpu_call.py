"""One call of :mod:`gpu_session`, and what its steps share."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from campo_onnx.calibrate.catalog import file_name
from campo_onnx.devices.device import Device
from campo_onnx.ir.view import FLOAT
from campo_onnx.measure.node_timer import Bench
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature, make_signature

LOW = Precision.FP16


class LimitReachedError(Exception):
    """The time of this call is used up; what was measured is kept."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """One call: where results go and when it ends."""

    folder: Path
    bench: Bench
    device: Device
    graphs: tuple[Path, ...]
    full: bool
    end: float

    @property
    def provider(self) -> str:
        """Where it runs."""
        return self.bench.machine.provider

    @property
    def on_cpu(self) -> bool:
        """Whether there is no GPU in it."""
        return self.provider == "cpu"

    @property
    def left_s(self) -> float:
        """Time until the call ends."""
        return self.end - time.monotonic()

    def tick(self, done: int, total: int) -> None:
        """Show how far a step is, and end the call when its time is up."""
        if sys.stderr.isatty():
            print(f"\r  {done}/{total}", end="", file=sys.stderr)
        self.check_time()

    def check_time(self) -> None:
        """End the call when its time is up."""
        if self.left_s < 0:
            raise LimitReachedError

    def calibration_path(self, precision: Precision, *, full: bool) -> Path:
        """Where a calibration goes: the full one under the name it is shipped as."""
        name = file_name(self.device.name, precision)
        return self.folder / (name if full else name.replace(".json", ".quick.json"))


def both_us(fp32: Signature, session: Session) -> dict[str, float]:
    """Time of a node in both precisions."""
    low = lowered(fp32, ports_of(fp32, LOW), LOW)
    assert low is not None
    return {"fp32_us": session.bench.time(fp32).median_us, "low_us": session.bench.time(low).median_us}


def matmul(m: int, k: int, n: int) -> Signature:
    """A matrix product in FP32."""
    return make_signature(OpKey("", "MatMul"), [(FLOAT, (m, k)), (FLOAT, (k, n))], [(FLOAT, (m, n))])
