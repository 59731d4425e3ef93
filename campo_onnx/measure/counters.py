"""Hardware counters of single nodes: read once in FP32, and kept in the store."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from campo_onnx.errors import DeviceUnavailableError
from campo_onnx.files import temporary_folder
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.one_node import one_node_model
from campo_onnx.ops.facts import work_of
from campo_onnx.ops.signature import Signature
from campo_onnx.ops.work import HOST_ONLY
from campo_onnx.runtime.onnxruntime.ncu import DURATION, METRICS, count
from campo_onnx.runtime.registry import runtime_called

COUNTERS = tuple(metric for metric in METRICS if metric != DURATION)
"""Names of the counters. The time they were read under is none of them: replaying makes it longer."""

_BATCH = 40  # models one process steps: it starts in seconds, and a batch is kept once it is read

Count = Callable[[Sequence[Path]], Sequence[Mapping[str, float] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Counters of some nodes."""

    # By signature; nodes without kernels, and all that could not be read, are missing.
    by_key: Mapping[str, Mapping[str, float]]
    refusal: str = ""  # why some could not be read; `""` when all were

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_key", MappingProxyType(dict(self.by_key)))


def counters_of(signatures: Iterable[Signature], timer: NodeTimer, read: Count = count) -> Counted:
    """Look counters up, and read those that are missing."""
    if not timer.machine.is_gpu:
        return Counted(by_key={}, refusal="only CUDA devices have hardware counters that can be read")
    if not runtime_called(timer.machine.runtime).capabilities.runs_each_node:
        why = f"hardware counters are read of nodes, and {timer.machine.runtime} runs several as one kernel"
        return Counted(by_key={}, refusal=why)
    by_key: dict[str, Mapping[str, float]] = {}
    missing: dict[str, Signature] = {}
    for signature in signatures:
        if work_of(signature).kind in HOST_ONLY:
            continue
        stored = timer.store.find_counters(timer.key(signature))
        if stored is None:
            missing[signature.key] = signature
        elif stored:
            by_key[signature.key] = stored
    for batch in _batches(missing.values()):
        try:
            counted = _read(batch, read)
        except DeviceUnavailableError as error:
            return Counted(by_key=by_key, refusal=str(error))
        for signature, values in zip(batch, counted, strict=True):
            timer.store.add_counters(timer.key(signature), values)
            if values:
                by_key[signature.key] = values
    return Counted(by_key=by_key)


def _read(batch: Sequence[Signature], read: Count) -> Sequence[Mapping[str, float]]:
    """Counters of each node; empty for one that did not run."""
    with temporary_folder() as workshop:
        files = []
        for index, signature in enumerate(batch):
            files.append(workshop / f"{index}.onnx")
            files[-1].write_bytes(one_node_model(signature, 1).SerializeToString())
        counted = read(files)
    return [{name: v for name, v in (values or {}).items() if name in COUNTERS} for values in counted]


def _batches(signatures: Iterable[Signature]) -> Iterator[Sequence[Signature]]:
    rest = iter(signatures)
    while batch := tuple(islice(rest, _BATCH)):
        yield batch
