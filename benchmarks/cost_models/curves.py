"""Learning curves: how well a model predicts low-precision times, by the number of samples fitted."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, TypeAlias

import numpy as np

from benchmarks.cost_models.collect import TESTED, both, casts
from campo_onnx.calibrate.fit import (
    METHODS,
    Method,
    Sample,
    fit_best,
    fit_cast,
    fit_op,
    model_accuracy,
    select,
)
from campo_onnx.calibrate.op_model import OpModel
from campo_onnx.measure.events import events_of
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.ops.signature import Signature
from campo_onnx.runtime.timing import SHORTEST_US
from campo_onnx.targets.target import Target

SIZES = (8, 16, 32, 64, 128, 250, 500, 1000)
_NEARLY = 0.9  # a few nodes are too short to be timed
_FEWEST_LONG = 10
REPEATS = 3
"""Draws of the samples to fit with, and starting weights of a perceptron; the median counts."""

PERCEPTRON_SIZES = (128, 1000)

IN_USE, MLP, MLP_LOG, EQ1, EQ1_RELATIVE = "in use", "MLP", "MLP of logarithms", "Eq. 1", "Eq. 1, shares"
LINEAR = {method.name: method for method in METHODS if not method.neighbours}
HIDDEN = (400, 400)
"""The paper's perceptron has four layers and 800 neurons."""

Predict: TypeAlias = Callable[[Sample], float]
Pairs: TypeAlias = tuple[list[Sample], list[Sample]]
Row: TypeAlias = dict[str, Any]


def samples_in(signatures: Sequence[Signature], timer: NodeTimer, target: Target) -> Pairs:
    """Samples of an operator in the store: those to test with, and those to fit."""
    pairs: Pairs = ([], [])
    for i, signature in enumerate(signatures):
        timings = [timer.find(each) for each in both(signature)]
        fp32_us, low_us = (0.0 if timing is None else timing.median_us for timing in timings)
        if min(fp32_us, low_us) > SHORTEST_US:
            events = events_of(signature, fp32_us, target)
            pairs[i >= TESTED].append(Sample(fp32_us=fp32_us, low_us=low_us, events=events))
    return pairs


def linear(samples: Sequence[Sample], method: Method) -> OpModel:
    return fit_op(samples, select(samples), method)


def fitted(samples: Sequence[Sample], name: str, seed: int = 0) -> Predict | None:
    """Fit a model by its name; None where samples are too few."""
    if name in (MLP, MLP_LOG):
        return perceptron(samples, logarithms=name == MLP_LOG, seed=seed)
    if name == IN_USE:
        best = fit_best(samples)
        return None if best is None else lambda s: best.model.low_us(s.fp32_us, s.events)
    model = linear(samples, LINEAR[name])
    return lambda s: model.low_us(s.fp32_us, s.events)


def perceptron(samples: Sequence[Sample], *, logarithms: bool, seed: int) -> Predict:
    """Fit a multilayer perceptron on what the regression has: the FP32 time and the selected events."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    selected = select(samples)

    def inputs(sample: Sample) -> list[float]:
        values = [sample.fp32_us, *(sample.events[event] for event in selected)]
        return [math.log(value + 1e-3) for value in values] if logarithms else values

    low_us = np.asarray([sample.low_us for sample in samples])
    network = TransformedTargetRegressor(
        make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=HIDDEN, random_state=seed)),
        transformer=StandardScaler(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit([inputs(sample) for sample in samples], np.log(low_us) if logarithms else low_us)

    def predict(sample: Sample) -> float:
        value = float(network.predict([inputs(sample)])[0])
        return math.exp(value) if logarithms else value

    return predict


def score(predict: Predict, tests: Sequence[Sample]) -> float:
    return model_accuracy([predict(sample) for sample in tests], [sample.low_us for sample in tests])


def curve(pairs: Pairs, name: str) -> dict[int, float]:
    """M_A on the samples to test with, by the number of samples fitted to: the median over some draws."""
    tests, pool = pairs
    by_size = {}
    is_perceptron = name in (MLP, MLP_LOG)
    for size in PERCEPTRON_SIZES if is_perceptron else SIZES:
        if size * _NEARLY > len(pool):
            break
        scores = []
        for draw in range(1 if size >= len(pool) and not is_perceptron else REPEATS):
            chosen = np.random.default_rng([size, draw]).permutation(len(pool))[:size]
            predict = fitted([pool[i] for i in chosen], name, seed=draw)
            if predict is not None:
                scores.append(score(predict, tests))
        if scores:
            by_size[size] = median(scores)
    return by_size


def on_long(pairs: Pairs, names: Sequence[str]) -> dict[str, float]:
    """M_A where times are within a factor of ten: of the nodes that take a tenth of the longest and more."""
    tests, pool = ([s for s in part if s.fp32_us >= _longest(pairs) / 10] for part in pairs)
    if min(len(tests), len(pool)) < _FEWEST_LONG:
        return {}
    models = {name: fitted(pool, name) for name in names}
    scores = {name: score(predict, tests) for name, predict in models.items() if predict is not None}
    return {"share": (len(tests) + len(pool)) / sum(map(len, pairs)), **scores}


def _longest(pairs: Pairs) -> float:
    return max(sample.fp32_us for part in pairs for sample in part)


def linearity(pairs: Pairs) -> float:
    """Pearson's correlation of the low-precision time with the FP32 time."""
    times = np.asarray([(s.fp32_us, s.low_us) for part in pairs for s in part])
    return float(np.corrcoef(times.T)[0, 1])


def cast_curves(timer: NodeTimer) -> dict[str, dict[int, float]]:
    """Eq. 1, fitted to microseconds as in the paper and to shares of the time."""
    timed = [
        (i // 2, elements, timing.median_us)
        for i, (elements, signature) in enumerate(casts())
        if (timing := timer.find(signature)) is not None and timing.median_us > SHORTEST_US
    ]
    tests = [(n, us) for pair, n, us in timed if pair % 11 == 0]
    pool = [(n, us) for pair, n, us in timed if pair % 11]
    by_name: dict[str, dict[int, float]] = {EQ1: {}, EQ1_RELATIVE: {}}
    for size in (size for size in SIZES if tests and size <= len(pool)):
        for name, relative in ((EQ1, False), (EQ1_RELATIVE, True)):
            scores = []
            for draw in range(REPEATS):
                chosen = np.random.default_rng([size, draw]).permutation(len(pool))[:size]
                sizes, times = zip(*(pool[i] for i in chosen), strict=True)
                model = fit_cast(sizes, times, relative=relative)
                scores.append(model_accuracy([model.cast_us(n) for n, _ in tests], [us for _, us in tests]))
            by_name[name][size] = median(scores)
    return by_name


def noise(signatures: Sequence[Signature], first: NodeTimer, again: NodeTimer) -> Row | None:
    """How far two timings of the same node are apart, and the M_A of one as a prediction of the other."""
    pairs = [
        (one.median_us, two.median_us)
        for signature in signatures
        for each in both(signature)
        if (one := first.find(each)) is not None and (two := again.find(each)) is not None
        if min(one.median_us, two.median_us) > SHORTEST_US
    ]
    if not pairs:
        return None
    apart = [abs(one - two) / one for one, two in pairs]
    return {
        "timings": len(pairs),
        "median": median(apart),
        "most_of": float(np.percentile(apart, 90)),
        "bound": 1 - fmean(apart),
    }


def sufficient(by_size: Mapping[int, float], within: float = 0.01) -> int | None:
    """Fewest samples from which on M_A stays within a point of what the most samples give."""
    if not by_size:
        return None
    best = by_size[max(by_size)]
    enough = None
    for size in sorted(by_size, reverse=True):
        if by_size[size] < best - within:
            break
        enough = size
    return enough
