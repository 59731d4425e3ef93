"""Time a thousand shapes of each operator and more in both precisions, in short runs that add up.

    python -m benchmarks.cost_models.collect --store timings.sqlite --seconds 100

Each run goes on where the last one stopped, and a kill loses the timing in flight. Shapes of an operator come
in the order they were drawn in, so that what is there so far is a fair sample at any moment. Every twentieth
shape is timed once more in a later run, into a second store: that tells noise.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.pages import arguments
from campo_onnx.calibrate.layers import SAMPLED_OPS
from campo_onnx.calibrate.samples import Sampling, cast_samples, samples_of
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.store import Store
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.registry import machine
from campo_onnx.runtime.timing import Effort

FITTED, TESTED = 1000, 100
"""The paper's numbers of samples per operator, to fit and to test with; the latter are drawn first."""

CASTS = 500
"""The paper's number of Casts in each direction to fit."""

LARGEST_CAST = 1 << 21

REPEATED_EVERY = 20

SAMPLING = Sampling(count=FITTED + TESTED, largest_bytes=8e6, largest_flops=2e8)
"""Most nodes take less than 5 ms on one core."""

_MAIN = (
    "MatMul",
    "Conv",
    "Add",
    "ReduceSum",
    "Softmax",
    "Mul",
    "Transpose",
    "LayerNormalization",
    "Relu",
    "MaxPool",
)
OPS = (*_MAIN, *(op for op in SAMPLED_OPS if op not in _MAIN))
"""Labels of operators, those first that matter most."""

EFFORT = Effort(warmup=1, repeats=15, least=5, budget_s=0.04)
LOW = Precision.FP16


def timers(store: Path) -> tuple[NodeTimer, NodeTimer]:
    """The timer of a store, and one that times again, into the store beside it."""
    here = machine("cpu", threads=1)
    first, again = Store(store), Store(store.with_suffix(".again.sqlite"))
    return (
        NodeTimer(machine=here, store=first, effort=EFFORT),
        NodeTimer(machine=here, store=again, effort=EFFORT),
    )


def both(signature: Signature) -> tuple[Signature, Signature]:
    """A node in FP32 and in the low precision.

    Raises
    ------
    UnsupportedModelError
        If there is no low variant.
    """
    ports = ports_of(signature, LOW)
    low = lowered(signature, ports, LOW)
    if low is None:
        raise UnsupportedModelError(f"{signature.op.label} has no {LOW.value} variant", why=ports.refusal)
    return signature, low


def casts() -> list[tuple[int, Signature]]:
    """Casts in both directions, with their numbers of elements: every eleventh pair to test with."""
    return list(cast_samples(CASTS + CASTS // 10, LARGEST_CAST, LOW))


def to_do(first: NodeTimer, again: NodeTimer, finished: Path) -> Iterator[tuple[NodeTimer, Signature]]:
    """Nodes left to time: of each operator those of earlier runs once more, then the new ones."""
    done = set(finished.read_text().split()) if finished.exists() else set()
    for _, cast in casts():
        if first.find(cast) is None:
            yield first, cast
    for op in OPS:
        if op in done:  # drawing its shapes takes time, too
            continue
        pairs = [both(signature) for signature in samples_of(op, SAMPLING)]
        fresh = [each for pair in pairs for each in pair if first.find(each) is None]
        missing = {each.key for each in fresh}
        repeated = [each for pair in pairs[::REPEATED_EVERY] for each in pair if each.key not in missing]
        yield from ((again, each) for each in repeated if again.find(each) is None)
        yield from ((first, each) for each in fresh)
        if not fresh:
            with finished.open("a") as file:
                file.write(f"{op}\n")


def main() -> None:
    """Time until the seconds are over."""
    parser = arguments(__doc__)
    parser.add_argument("--store", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=100.0, help="after which no further node is begun")
    asked = parser.parse_args()
    first, again = timers(asked.store)
    end, counts = time.monotonic() + asked.seconds, Counter[str]()
    for timer, signature in to_do(first, again, asked.store.with_suffix(".finished")):
        if time.monotonic() > end:
            break
        try:
            timer.time(signature)
            counts[signature.op.label] += 1
        except UnsupportedModelError as error:
            counts["failed"] += 1
            print(f"{signature.op.label}: {error}")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"timed {dict(counts)}; load average {load}")


if __name__ == "__main__":
    main()
