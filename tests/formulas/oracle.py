"""A formula optimized, and its outcome held against FP64 and against products that are rounded honestly."""

import inspect
import random
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from campo_onnx import Options, Precision, oplists, optimize_model, target
from campo_onnx.emulation.batches import Batch
from campo_onnx.emulation.drift import most_drift
from campo_onnx.emulation.numerics import emulate
from campo_onnx.emulation.probe import probe
from campo_onnx.emulation.rounded import rounded
from tests.formulas import (
    attention,
    densities,
    dynamics,
    geometry,
    instruments,
    learning,
    losses,
    metrics,
    recursions,
    scenes,
    science,
    sequences,
    signals,
    training,
)
from tests.formulas.formula import Formula, Tensor
from tests.formulas.rewording import reworded
from tests.formulas.step import Array
from tests.random_graphs.builder import run

Template = Callable[[Formula], Tensor]

COMPUTED = 0.3
"""The share of formulas whose data comes out of a product of matrices, as in a network."""

MANY_TIMES = 5.0
"""By how much a plan may be further off than its products put it, each rounded by itself, together."""


RIGHT = frozenset({"ok", "nothing low", "FP32 itself is off", "its products alone are wrong"})
"""Outcomes of which none is a fault of a plan."""


class Tried(StrEnum):
    """On what a plan was tried before it was run on the formula's data."""

    NOTHING = "nothing"
    DRAWN = "drawn batches"
    OWN = "its own data"


def _of(module: ModuleType) -> dict[str, Template]:
    functions = inspect.getmembers(module, inspect.isfunction)
    own = {name: value for name, value in functions if value.__module__ == module.__name__}
    stem = module.__name__.rpartition(".")[2]
    reads = {
        name: [p.annotation for p in inspect.signature(v).parameters.values()] for name, v in own.items()
    }
    return {f"{stem}.{n}": v for n, v in own.items() if reads[n] == [Formula]}


_MODULES = (
    *(attention, densities, dynamics, geometry, instruments, learning, losses, metrics, recursions, scenes),
    *(science, sequences, signals, training),
)

TEMPLATES: Mapping[str, Template] = {k: v for module in _MODULES for k, v in _of(module).items()}

_ROUNDED: Mapping[Precision, Any] = {Precision.FP16: np.float16, Precision.BF16: ml_dtypes.bfloat16}


def outcome_of(
    seed: int, trials: Sequence[Tried] = tuple(Tried), template: str = "", reworded_share: float = 0.0
) -> dict[str, Any]:
    """Draw a formula, its data and how it is planned; optimize it; hold every trial against the oracle.

    A plan that a trial leaves as it was is not run again. The seed chooses the template where none is named.
    A share of the nodes may be written in other words.

    Returns
    -------
    dict
        The seed, the template, the setting; by trial ``ok``, ``nothing low``, or what is wrong.
    """
    rng = random.Random(f"formula {seed}")
    name = template or sorted(TEMPLATES)[seed % len(TEMPLATES)]
    low = rng.choice((Precision.FP16, Precision.FP16, Precision.BF16))
    strategy = rng.choice(("optimal", "optimal", "torch-amp", "fine-grained"))
    row: dict[str, Any] = {"seed": seed, "template": name, "strategy": strategy, "low": low.value}
    formula = Formula(rng, is_computed=rng.random() < COMPUTED)
    output = reworded(TEMPLATES[name](formula), reworded_share)
    model = formula.model([output])
    exact = formula.values[output.name]
    fp32 = run(model, formula.inputs)[output.name]
    if not np.isfinite(exact).all() or _error(fp32, exact) > most_drift(low) / 10:
        return row | {"outcome": "FP32 itself is off"}
    cheap = replace(target("h200" if low is Precision.BF16 else "v100"), launch_us=1e-6, host_us=1e-6)
    lists = oplists("pytorch" if strategy == "torch-amp" else "campo")
    options = Options(
        target=cheap, lists=lists, low=low, strategy=strategy, margin_us=1e12, min_gain=0.0, pads=False
    )
    planned = optimize_model(model, options)
    verdicts: dict[frozenset[str], str] = {}
    for tried in trials:
        optimized = planned
        if tried is not Tried.NOTHING:
            batches = [Batch("its own data", formula.inputs)] if tried is Tried.OWN else []
            optimized = probe(planned, options, batches).optimized
        if optimized.plan.low_nodes not in verdicts:
            verdicts[optimized.plan.low_nodes] = _verdict(optimized, formula, output, low)
        row[tried.value] = verdicts[optimized.plan.low_nodes]
    wrong = [tried.value for tried in trials if row[tried.value] not in RIGHT]
    return row | {"outcome": f"wrong if tried on {', '.join(wrong)}" if wrong else row[trials[0].value]}


def _verdict(optimized: Any, formula: Formula, output: Tensor, low: Precision) -> str:
    exact = formula.values[output.name]
    if not optimized.plan.low_nodes:
        return "nothing low"
    try:
        actual = run(emulate(optimized.model), formula.inputs)[output.name]
    except Exception as error:  # an index that a low precision put outside
        return f"fails: {str(error)[:80]}"
    error, explained = _error(actual, exact), most_drift(low)
    if error <= (explained if exact.dtype.kind == "f" else 0.0):
        return "ok"
    by_products = _errors_of_products(formula, output, low)
    if not np.isfinite(by_products).all():
        return "its products alone are wrong"
    if _is_coarse_in_fp32(optimized, formula, output, low):
        return "FP32 itself is off"
    together = _error_of(set(formula.products), formula, output, low)
    by_choices = _errors_of_choices(formula, output, low)
    explained = max(explained, MANY_TIMES * max(float(np.linalg.norm(by_products)), together, *by_choices))
    return f"off by {error:.2g}, explained {explained:.2g}" if not error <= explained else "ok"


def _errors_of_products(formula: Formula, output: Tensor, low: Precision) -> list[float]:
    return [_error_of({name}, formula, output, low) for name in formula.products]


def _error_of(names: Container[str], formula: Formula, output: Tensor, low: Precision) -> float:
    values = formula.with_rounded(names, partial(_rounded_to, low))
    return _error(values[output.name], formula.values[output.name])


def _errors_of_choices(formula: Formula, output: Tensor, low: Precision) -> Iterator[float]:
    """Errors of comparisons that a rounding of what they compare decides otherwise in a few places."""
    few = MANY_TIMES * 2.0**-low.fraction_bits
    yield 0.0
    for name, step in formula.comparisons.items():
        values = formula.with_rounded({name}, partial(_rounded_to, low))
        differ = values[step.makes] != formula.values[step.makes]
        if differ.sum() <= max(1.0, few * differ.size):
            yield _error(values[output.name], formula.values[output.name])


def _rounded_to(low: Precision, value: Array) -> Array:
    if value.dtype.kind != "f":
        return value
    with np.errstate(over="ignore"):
        return value.astype(np.float32).astype(_ROUNDED[low]).astype(np.float64)


def _is_coarse_in_fp32(optimized: Any, formula: Formula, output: Tensor, low: Precision) -> bool:
    """Whether FP32's own arithmetic is off on the data that low products hand on, all of them rounded.

    A difference of two sigmoids of 6e-8 is one step of FP32 or none.
    """
    products = optimized.plan.low_nodes & formula.products.keys()
    exact = formula.with_rounded(products, partial(_rounded_to, low))[output.name]
    imported, ports = optimized.imported, optimized.problem.ports
    in_fp32 = run(rounded(imported.model, products, ports, low), formula.inputs)[output.name]
    return _error(in_fp32, exact) > most_drift(low) / 10


def _error(actual: Array, exact: Array) -> float:
    """The relative error, infinite if a value is; of whole numbers, the share that differs."""
    if exact.dtype.kind in "iub":
        return float(np.mean(actual != exact))
    if not np.isfinite(actual).all():
        return float("inf")
    size = float(np.linalg.norm(exact.astype(np.float64)))
    distance = float(np.linalg.norm(actual.astype(np.float64) - exact))
    return distance / size if size else float(distance > 0)
