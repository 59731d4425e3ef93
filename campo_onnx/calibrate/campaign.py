"""A calibration campaign: the nodes of a calibration timed by all machines of a cluster, into one store.

Each kind of machine times its nodes once, on as many GPUs as there are of it; the store is then what a
calibration on that machine would have left, and is fitted from it alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from campo_onnx.calibrate.run import Workload, has_kernel
from campo_onnx.calibrate.samples import cast_samples, samples_of
from campo_onnx.errors import DeviceMismatchError, DeviceUnavailableError, UnsupportedModelError
from campo_onnx.files.codec import from_plain, to_plain
from campo_onnx.measure.node_timer import VIEW_NODE, NodeTimer, timed_as
from campo_onnx.measure.store import Execution, Store, TimingKey
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.machine import CPU, CUDA, Machine
from campo_onnx.runtime.registry import machine, processor_for
from campo_onnx.runtime.timing import Timing
from campo_onnx.scale.cluster import RayPool
from campo_onnx.scale.work import Task

CHUNK = 8
"""Nodes in a task: some seconds of work, which is what a worker that dies costs."""

_TYPE = "accelerator_type:"
_ADDRESS = "node:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of machine in a cluster."""

    machine: Machine
    # What Ray must set aside for a task to run on one of them, alone with its device.
    resources: Mapping[str, float]


def kinds_in(pool: RayPool, device: str, threads: int = 0) -> tuple[Kind, ...]:
    """Find the kinds of machines in a cluster.

    `device`: ``auto`` for GPUs where there are any, else CPUs; ``cpu``; ``cuda``.

    Raises DeviceUnavailableError if there is none, or machines with the same GPU differ in driver, CUDA or
    ONNX Runtime.
    """
    has_gpus = any(node["Resources"].get("GPU", 0) >= 1 for node in pool.nodes())
    on_gpus = device == CUDA or (device == "auto" and has_gpus)
    if on_gpus and not has_gpus:
        raise DeviceUnavailableError(
            "no machine of the Ray cluster has a GPU",
            remedy="Start its nodes with --num-gpus, or give --device cpu.",
        )
    needed = {"GPU": 1.0} if on_gpus else {"CPU": 1.0}
    provider = CUDA if on_gpus else CPU
    facts = pool.on_each_node(lambda: to_plain(machine(processor_for(provider), threads)), needed)
    kinds: dict[str, Kind] = {}
    for node in pool.nodes():
        if node["NodeID"] not in facts:
            continue
        one = from_plain(facts[node["NodeID"]], Machine)
        place, resources = _place(node["Resources"], on_gpus)
        other = kinds.setdefault(place, Kind(machine=one, resources=resources)).machine
        if other != one:
            raise DeviceUnavailableError(
                f"machines of the Ray cluster with {one.device} differ",
                why=f"one has driver {other.driver or 'none'}, CUDA {other.cuda or 'none'} and ONNX Runtime "
                f"{other.ort}, another {one.driver or 'none'}, {one.cuda or 'none'} and {one.ort}",
                remedy="Install the same on them, or take one out.",
            )
    by_machine = {kind.machine: kind for kind in reversed(kinds.values())}
    return tuple(by_machine.values())


def campaign(
    kinds: Sequence[Kind],
    workload_of: Callable[[str], Workload],
    pool: RayPool,
    store: Store,
    *,
    precision: Precision,
    execution: Execution,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[str, ...]:
    """Time what the store lacks, each kind of machine its own; give what failed.

    Raises ProfileError if the store cannot be written. What was timed before is kept.
    """
    tasks = []
    for kind in kinds:
        workload = workload_of(kind.machine.provider)
        nodes = nodes_of(workload, kind.machine, precision)
        timer = NodeTimer(machine=kind.machine, store=store, execution=execution)
        missing = [number for number, node in enumerate(nodes) if timer.find(node) is None]
        for first in range(0, len(missing), CHUNK):
            chunk = tuple(missing[first : first + CHUNK])
            tasks.append(
                Task(
                    key=f"{kind.machine} {chunk}",
                    function=time_chunk,
                    arguments=(to_plain(kind.machine), workload, precision.value, execution.value, chunk),
                    resources=kind.resources,
                )
            )
    advance(0, len(tasks))
    failures: dict[str, str] = {}
    for done, (task, outcome) in enumerate(pool.outcomes(tasks), 1):
        if outcome.failure:
            failures[task.key] = outcome.failure
        else:
            _keep(outcome.value, store)
        advance(done, len(tasks))
    return tuple(dict.fromkeys(failures[task.key] for task in tasks if task.key in failures))


def time_chunk(
    expected: Mapping[str, Any], workload: Workload, precision: str, execution: str, chunk: Sequence[int]
) -> list[dict[str, Any]]:
    """Time some nodes of a workload on this machine; nodes that do not run here are left out."""
    wanted = from_plain(expected, Machine)
    here = machine(processor_for(wanted.provider, wanted.runtime), wanted.threads, wanted.runtime)
    if here != wanted:
        raise DeviceMismatchError(f"this is {here.device}, and {wanted.device} was expected")
    rows = []
    with Store() as store:
        timer = NodeTimer(machine=here, store=store, execution=Execution(execution))
        nodes = nodes_of(workload, here, Precision(precision))
        for number in chunk:
            try:
                timing = timer.time(nodes[number])
            except UnsupportedModelError:
                continue
            signature = timed_as(nodes[number]).key
            rows.append(
                {
                    "machine": expected,
                    "signature": signature,
                    "execution": execution,
                    "timing": to_plain(timing),
                }
            )
    return rows


@lru_cache(8)
def nodes_of(workload: Workload, machine: Machine, precision: Precision) -> tuple[Signature, ...]:
    """List what a calibration times, each once: the same on every machine."""
    return tuple({timed_as(node).key: node for node in _nodes_of(workload, machine, precision)}.values())


def _nodes_of(workload: Workload, machine: Machine, precision: Precision) -> Iterator[Signature]:
    yield VIEW_NODE
    for _, cast in cast_samples(workload.casts, workload.largest_cast_elements, precision):
        yield cast
    for op in workload.ops:
        for signature in samples_of(op, workload.sampling, is_gpu=machine.is_gpu):
            if not has_kernel(signature, machine, precision):
                continue
            low = lowered(signature, ports_of(signature, precision), precision)
            if low is not None:
                yield low
                yield signature


def _keep(rows: Sequence[Mapping[str, Any]], store: Store) -> None:
    for row in rows:
        key = TimingKey(
            machine=from_plain(row["machine"], Machine),
            signature=row["signature"],
            execution=Execution(row["execution"]),
        )
        store.add(key, from_plain(row["timing"], Timing))


def _place(resources: Mapping[str, float], on_gpus: bool) -> tuple[str, Mapping[str, float]]:
    """Say where a kind runs, and what a task takes there: a GPU, or all of one node's attention."""
    if on_gpus:
        kind = next((name for name in resources if name.startswith(_TYPE)), "")
        return kind, {"GPU": 1.0, **({kind: 0.001} if kind else {})}
    address = next(n for n in resources if n.startswith(_ADDRESS) and not n.startswith(f"{_ADDRESS}__"))
    return address, {address: 1.0}
