"""What of a step is matrix products and convolutions, ours in ONNX Runtime's profile and torch's in its own.

Profiling makes every node longer by about the same time, the more of them the more. Each is therefore taken
without the excess, the same for all, by which their sum is longer than a step that is not profiled.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from benchmarks.steps import Facts

PRODUCTS = frozenset({"Conv", "ConvTranspose", "FusedMatMul", "Gemm", "MatMul"})
"""Operators whose kernels are ONNX Runtime's matrix products and convolutions."""

TORCH_PRODUCTS = frozenset(
    {
        *("aten::addmm", "aten::baddbmm", "aten::bmm", "aten::mm"),
        *("aten::convolution", "aten::_convolution", "aten::convolution_backward"),
        *("aten::mkldnn_convolution", "aten::_slow_conv2d_forward", "aten::slow_conv_transpose2d"),
        *("aten::_conv_depthwise2d", "aten::_mkldnn_transposed_convolution"),
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    }
)
"""What these are in torch's profile; attention in one kernel counts as a whole."""

STEPS = 8


def without_excess(
    times_ms: Mapping[str, float], counts: Mapping[str, float], step_ms: float
) -> dict[str, float]:
    """Take from each kind of node what the profile added to it.

    Parameters
    ----------
    times_ms, counts
        By kind: time in a profiled step, and how many nodes that is.
    step_ms
        A step that is not profiled.

    Examples
    --------
    >>> without_excess({"Gemm": 8.0, "Add": 4.0}, {"Gemm": 2, "Add": 4}, 9.0)
    {'Gemm': 7.0, 'Add': 2.0}
    """
    excess_ms = max(0.0, sum(times_ms.values()) - step_ms) / sum(counts.values())
    return {kind: max(0.0, ms - excess_ms * counts[kind]) for kind, ms in times_ms.items()}


def ours(path: Path, threads: int) -> Facts:
    """Time our step, without its update, as it is and then node by node; the largest operators by name.

    It is the graph as a session runs it, with parameters in the order in which it reads them.
    """
    from campo_onnx.ir.importer import import_model
    from campo_onnx.lowering.place import Place
    from campo_onnx.lowering.sequence import as_it_runs
    from campo_onnx.runtime.api import LoadSettings
    from campo_onnx.runtime.feeds import synthesize
    from campo_onnx.runtime.registry import load, machine
    from campo_onnx.training.gradient_interface import gradient_interface
    from campo_onnx.training.weight_order import kept_as_read
    from campo_onnx.training.weight_update import WeightUpdate

    here = machine("cpu", threads)
    given = as_it_runs(import_model(path), Place.on(here))
    parameters = gradient_interface(given.view, WeightUpdate(optimizer=None)).parameters()
    imported = import_model(kept_as_read(given.model, given.view, parameters)[0])
    feeds = synthesize(imported.view)
    graph_ms = _median_ms(load(imported.model, here, settings=LoadSettings(spins=False)).placed(feeds))
    traced = load(imported.model, here, settings=LoadSettings(spins=False, traces=True))
    times = traced.node_times(feeds, repeats=STEPS)
    times_ms: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name, timing in ((executed.nodes[0], executed.time) for executed in times.nodes):
        node = imported.view.node[name]
        op_type = node.op.op_type
        if op_type in PRODUCTS and any(tensor in imported.constants for tensor in node.inputs):
            # It moves elements, as a product with zeros and ones does, or sums them: none of the network's.
            op_type = f"{op_type} by a constant"
        times_ms[op_type] += timing.median_us / 1e3
        counts[op_type] += 1
    by_op = Counter(without_excess(times_ms, counts, graph_ms))
    return {
        "graph_ms": graph_ms,
        "profiled_ms": times.step.median_us / 1e3,
        "products_ms": sum(ms for op, ms in by_op.items() if op in PRODUCTS),
        "by_op_ms": dict(by_op.most_common(12)),
    }


def of_torch(step: Callable[[], object]) -> Facts:
    """Time torch's step as it is and then operator by operator."""
    from torch.profiler import ProfilerActivity, profile

    step_ms = _median_ms(step)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(STEPS):
            step()
    events = profiled.key_averages()
    times_ms = {event.key: event.self_cpu_time_total / 1e3 / STEPS for event in events}
    by_op = without_excess(times_ms, {event.key: event.count / STEPS for event in events}, step_ms)
    return {
        "torch_products_ms": sum(ms for op, ms in by_op.items() if op in TORCH_PRODUCTS),
        "torch_by_op_ms": dict(Counter(by_op).most_common(12)),
    }


def _median_ms(step: Callable[[], object]) -> float:
    times_ms = []
    for _ in range(2 + STEPS):
        began = time.perf_counter()
        step()
        times_ms.append((time.perf_counter() - began) * 1e3)
    return median(times_ms[2:])
