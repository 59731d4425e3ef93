"""Calibrate a device: measure samples of every operator in both precisions, and fit the models.

Everything measured goes through the store, so a calibration that is interrupted goes on where it
stopped, and a longer one builds on a shorter one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from campo_onnx.calibrate.calibration import Calibration, OpEntry, Scores
from campo_onnx.calibrate.fit import (
    METHODS,
    Sample,
    accuracy,
    fit_best,
    fit_by,
    fit_cast,
    fit_time,
    model_accuracy,
    split,
)
from campo_onnx.calibrate.layers import QUICK_OPS, SAMPLED_OPS
from campo_onnx.calibrate.op_model import OpModel, TimeModel
from campo_onnx.calibrate.samples import Sampling, cast_samples, samples_of
from campo_onnx.errors import ProfileError, UnsupportedModelError
from campo_onnx.measure.counters import Counted
from campo_onnx.measure.events import events_of, static_events
from campo_onnx.measure.node_timer import VIEW_NODE, NodeTimer, NotStoredError
from campo_onnx.ops.facts import ports_of, work_of
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.machine import CPU, CUDA, Machine
from campo_onnx.runtime.registry import runtime_called
from campo_onnx.runtime.timing import SHORTEST_US
from campo_onnx.targets.cast_model import CastModel
from campo_onnx.targets.roofline import node_time
from campo_onnx.targets.target import Target

_CASTS = "Cast"
_NEWER_OPSET = 22
_FEWEST_CASTS = 4  # to fit a line, and to test it


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Operators, shapes and sweeps to measure."""

    ops: tuple[str, ...]
    sampling: Sampling
    casts: int
    largest_cast_elements: int
    # FP32 nodes of real steps, beside the shapes that are drawn. Where nothing is measured, those that the
    # store has in both precisions count.
    of_steps: tuple[Signature, ...] = ()


def has_kernel(signature: Signature, machine: Machine, precision: Precision) -> bool:
    """Whether the runtime of a machine runs a node in a precision at all."""
    support = runtime_called(machine.runtime).support(signature, machine.provider, precision)
    return support is not Support.REFUSED


def _workload(
    ops: tuple[str, ...], count: int, casts: int, largest_bytes: float, largest_flops: float, cast_bits: int
) -> Workload:
    sampling = Sampling(count=count, largest_bytes=largest_bytes, largest_flops=largest_flops)
    return Workload(ops=ops, sampling=sampling, casts=casts, largest_cast_elements=1 << cast_bits)


QUICK: Mapping[str, Workload] = {
    CPU: _workload(QUICK_OPS, 40, 16, 8e6, 5e8, 22),
    CUDA: _workload(QUICK_OPS, 40, 16, 2.5e8, 1e11, 26),
}
"""A few minutes, by kind of processor."""

FULL: Mapping[str, Workload] = {
    CPU: _workload(SAMPLED_OPS, 400, 500, 6.4e7, 1e10, 24),
    CUDA: _workload(SAMPLED_OPS, 400, 500, 1e9, 2e12, 28),
}
"""Hours, by kind of processor; as many casts as in the paper."""


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A node measured in both precisions."""

    signature: Signature
    sample: Sample
    counters: Mapping[str, float] = field(default_factory=dict)


_Timed: TypeAlias = tuple[Signature, float]
"""A node, and its time in FP32."""


def calibrate(
    workload: Workload,
    timer: NodeTimer,
    target: Target,
    precision: Precision,
    on_progress: Callable[[int, int], None] | None = None,
    read_counters: Callable[[Iterable[Signature], NodeTimer], Counted] | None = None,
) -> Calibration:
    """Measure and fit.

    `read_counters`: what reads hardware counters of FP32 nodes
    (:func:`campo_onnx.measure.counters.counters_of`); None does without. Once it refuses, the rest of the
    workload does without, too.

    Raises ProfileError if nothing could be measured, or a timer that only looks up finds too little; the
    message says why.
    """
    drawn = {
        op: tuple(
            typed(signature, precision)
            for signature in samples_of(op, workload.sampling, is_gpu=target.hardware.is_gpu)
        )
        for op in workload.ops
    }
    casts = list(cast_samples(workload.casts, workload.largest_cast_elements, precision))
    sampled = {op: len(signatures) for op, signatures in drawn.items()}
    for signature in workload.of_steps:
        label, node = signature.op.label, typed(signature, precision)
        drawn[label] = tuple(dict.fromkeys((*drawn.get(label, ()), node)))
    total = 2 * sum(map(len, drawn.values())) + len(casts) + 1
    done, measured_at = 0, ""

    def time_us(signature: Signature) -> float:
        nonlocal done, measured_at
        try:
            timing = timer.time(signature)
            measured_at = max(measured_at, timer.store.measured_at(timer.key(signature)))
            return timing.median_us
        finally:
            done += 1
            if on_progress is not None:
                on_progress(done, total)

    host_us, timed_casts = _host_and_casts(casts, time_us)
    cast, cast_score, cast_paper_score = _fit_casts(timed_casts)
    missing = Counter({_CASTS: len(casts) - len(timed_casts)})
    pairs: dict[tuple[str, bool], list[_Pair]] = {}
    alone: dict[tuple[str, bool], list[_Timed]] = {}
    failures: dict[str, str] = {}
    for op, signatures in drawn.items():
        for number, signature in enumerate(signatures):
            if not has_kernel(signature, timer.machine, precision):
                where = f"{timer.machine.software.rpartition(' ')[0]} on {timer.machine.provider}"
                failures[op] = f"{where} has no {precision.value} kernel"
                continue
            group = (op, takes_tensor_cores(signature, target, precision))
            try:
                pair = _measure(signature, precision, target, time_us)
            except NotStoredError:
                missing[op] += number < sampled.get(op, 0)
                with suppress(NotStoredError):  # the trace of a step holds most nodes in one precision
                    if (fp32_us := time_us(signature)) > SHORTEST_US:
                        alone.setdefault(group, []).append((signature, fp32_us))
                continue
            except UnsupportedModelError as error:
                failures.setdefault(op, str(error))
                continue
            if pair is not None:
                pairs.setdefault(group, []).append(pair)
    totals = {_CASTS: len(casts)} | sampled
    failures = {op: f"{n} of {totals[op]} are not in the store" for op, n in missing.items() if n} | failures
    counters_refusal = ""
    if read_counters is not None:
        pairs, counters_refusal = _counted(pairs, timer, read_counters)
    entries, general, general_time = _fit(pairs, alone, target, precision, failures)
    return Calibration(
        machine=timer.machine,
        hardware=target.hardware,
        precision=precision,
        execution=timer.execution,
        cast=cast,
        cast_score=cast_score,
        cast_paper_score=cast_paper_score,
        host_us=host_us,
        entries=entries,
        general=general,
        general_time=general_time,
        failures=failures,
        measured_at=measured_at,
        counters_refusal=counters_refusal,
    )


def _host_and_casts(
    casts: Sequence[tuple[int, Signature]], time_us: Callable[[Signature], float]
) -> tuple[float, list[tuple[int, float]]]:
    """Time a view, and those Casts that may be measured or are stored."""
    timed = []
    try:
        host_us = time_us(VIEW_NODE)
    except NotStoredError as error:
        raise _too_little(error.what) from None
    for elements, signature in casts:
        with suppress(NotStoredError):
            timed.append((elements, time_us(signature)))
    if len(timed) < min(len(casts), _FEWEST_CASTS):
        raise _too_little(f"it holds {len(timed)} of {len(casts)} Casts")
    return host_us, timed


def _too_little(why: str) -> ProfileError:
    return ProfileError(
        "the store has too few timings for a calibration",
        why=why,
        remedy="Measure there with `campo-onnx calibrate`, with the same --quick, --ops, --shapes and "
        "--precision as here; what it was given before it was interrupted counts.",
    )


def takes_tensor_cores(signature: Signature, target: Target, precision: Precision) -> bool:
    """Whether tensor cores take all matrix products of a node in the low precision, unpadded.

    On a CPU kernels differ for grouped convolutions, too.
    """
    gemms, hardware = work_of(signature).gemms, target.hardware
    if not gemms or hardware.tensor_flops_per_s(precision) is None:
        return False
    is_grouped = not hardware.is_gpu and signature.attribute("group", 1) != 1
    takes_any_size = hardware.efficiency.unaligned == 1.0
    multiples = hardware.multiples(precision)
    return not is_grouped and (takes_any_size or all(gemm.is_aligned(multiples) for gemm in gemms))


def typed(signature: Signature, precision: Precision) -> Signature:
    """Return a node at an opset that has it in a precision: ONNX has BF16 convolutions from 22 on.

    >>> from campo_onnx.calibrate.samples import Sampling, samples_of
    >>> (conv,) = samples_of("Conv", Sampling(count=1, largest_bytes=1e6, largest_flops=1e8))
    >>> conv.opset, typed(conv, Precision.FP16).opset, typed(conv, Precision.BF16).opset
    (20, 20, 22)
    """
    if not ports_of(signature, precision).refusal:
        return signature
    newer = replace(signature, opset=_NEWER_OPSET)
    return signature if ports_of(newer, precision).refusal else newer


def _measure(
    signature: Signature, precision: Precision, target: Target, time_us: Callable[[Signature], float]
) -> _Pair | None:
    """Both times of a node; None when it is too short to be told from noise."""
    ports = ports_of(signature, precision)
    low = lowered(signature, ports, precision)
    if low is None:
        raise UnsupportedModelError(
            f"{signature.op.label} has no {precision.value} variant", why=str(ports.refusal)
        )
    low_us, fp32_us = time_us(low), time_us(signature)  # the one that may be refused comes first
    if fp32_us <= SHORTEST_US or low_us <= SHORTEST_US:
        return None
    events = events_of(signature, fp32_us, target)
    return _Pair(signature=signature, sample=Sample(fp32_us=fp32_us, low_us=low_us, events=events))


def _counted(
    pairs: Mapping[tuple[str, bool], list[_Pair]],
    timer: NodeTimer,
    read_counters: Callable[[Iterable[Signature], NodeTimer], Counted],
) -> tuple[dict[tuple[str, bool], list[_Pair]], str]:
    """Add hardware counters to pairs; and say why some have none."""
    counters = read_counters((pair.signature for group in pairs.values() for pair in group), timer)
    counted = {
        group: [replace(pair, counters=counters.by_key.get(pair.signature.key, {})) for pair in members]
        for group, members in pairs.items()
    }
    return counted, counters.refusal


def _fit_casts(measured: Sequence[tuple[int, float]]) -> tuple[CastModel, float, float]:
    """Fit Eq. 1 to shares of the time and, for comparison, as in the paper; with M_A of both."""
    fitted, held_out = split([(n, us) for n, us in measured if us > SHORTEST_US])

    def scored(relative: bool) -> tuple[CastModel, float]:
        model = fit_cast([n for n, _ in fitted], [us for _, us in fitted], relative=relative)
        return model, model_accuracy([model.cast_us(n) for n, _ in held_out], [us for _, us in held_out])

    (model, score), (_, paper_score) = scored(relative=True), scored(relative=False)
    return model, score, paper_score


def _fit(
    pairs: Mapping[tuple[str, bool], list[_Pair]],
    alone: Mapping[tuple[str, bool], Sequence[_Timed]],
    target: Target,
    precision: Precision,
    failures: dict[str, str],
) -> tuple[tuple[OpEntry, ...], OpModel, TimeModel]:
    halves = {group: split(group_pairs) for group, group_pairs in pairs.items()}
    everything = [pair for fitted, _ in halves.values() for pair in fitted]
    fitted_ones = [method for method in METHODS if not method.keeps_samples]  # of all samples: a file of them
    general = fit_best([pair.sample for pair in everything], fitted_ones)
    if general is None:
        why = next(iter(failures.values()), "every node was too short to be timed")
        raise ProfileError(
            "nothing could be calibrated", why=why, remedy="Choose other operators with --ops."
        )
    general_time = _fit_time(everything, target, keeps_samples=False)
    entries = []
    for (op, on_tensor_cores), (fitted, held_out) in halves.items():
        best = fit_best([pair.sample for pair in fitted])
        if best is None:
            where = " on tensor cores" if on_tensor_cores else ""
            failures.setdefault(op, f"only {len(fitted)} shapes to fit{where}")
            continue
        time, tests = _fit_time(fitted, target), [pair.sample for pair in held_out]
        with_counters, counters_score = _fit_counted(fitted, held_out)
        scores = Scores(
            shapes=len(held_out),
            chosen=accuracy(best.model, tests),
            by_method={name: accuracy(model, tests) for name, model in best.by_method.items()},
            general=accuracy(general.model, tests),
            roofline=model_accuracy(
                [_roofline_us(p.signature, target, precision) for p in held_out], [s.low_us for s in tests]
            ),
            fp32=model_accuracy(
                [time.fp32_us(static_events(p.signature, target)) for p in held_out],
                [s.fp32_us for s in tests],
            ),
            with_counters=counters_score,
        )
        # Scores are of fits that do not know the shapes held out. What predicts learns from those, too.
        entries.append(
            OpEntry(
                op=op,
                on_tensor_cores=on_tensor_cores,
                method=best.method,
                model=fit_by(best.method, [pair.sample for pair in (*fitted, *held_out)]),
                time=_fit_time((*fitted, *held_out), target, alone.get((op, on_tensor_cores), ())),
                fitted=len(fitted),
                scores=scores,
                with_counters=with_counters,
            )
        )
    return tuple(entries), general.model, general_time


def _fit_counted(fitted: Sequence[_Pair], held_out: Sequence[_Pair]) -> tuple[OpModel | None, float | None]:
    """Fit with hardware counters beside the derived events, and M_A of it; where all shapes have them."""
    shared = set.intersection(*(set(pair.counters) for pair in (*fitted, *held_out)))

    def samples(pairs: Sequence[_Pair]) -> list[Sample]:
        extra = [{name: pair.counters[name] for name in sorted(shared)} for pair in pairs]
        return [replace(p.sample, events={**p.sample.events, **e}) for p, e in zip(pairs, extra, strict=True)]

    best = fit_best(samples(fitted)) if shared else None
    return (best.model, accuracy(best.model, samples(held_out))) if best is not None else (None, None)


def _fit_time(
    pairs: Sequence[_Pair], target: Target, alone: Sequence[_Timed] = (), *, keeps_samples: bool = True
) -> TimeModel:
    """Fit FP32 times of pairs, and of nodes `alone` that were timed in FP32 only."""
    timed = [*((pair.signature, pair.sample.fp32_us) for pair in pairs), *alone]
    events = [static_events(signature, target) for signature, _ in timed]
    return fit_time(events, [fp32_us for _, fp32_us in timed], keeps_samples=keeps_samples)


def _roofline_us(signature: Signature, target: Target, precision: Precision) -> float:
    return node_time(signature, ports_of(signature, precision), target, precision).time_us
