"""Eq. 1 and Eq. 2 against data made from known coefficients."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from campo_onnx.calibrate import fit
from campo_onnx.calibrate.fit import (
    METHODS,
    PAPER,
    Sample,
    accuracy,
    correlations,
    fit_best,
    fit_cast,
    fit_op,
    fit_time,
    model_accuracy,
    select,
    split,
)
from campo_onnx.calibrate.op_model import TIME, OpModel, TimeModel
from campo_onnx.targets.cast_model import CastModel, Knee


def samples(count: int, low_us, *, noise: float = 0.0, seed: int = 0) -> list[Sample]:
    """Nodes whose low-precision time is a known function of FP32 time and two events."""
    random = np.random.default_rng(seed)
    nodes = []
    for _ in range(count):
        traffic = float(np.exp(random.uniform(5, 12)))
        fp32_us = traffic / 1000 + 3
        events = {"traffic": traffic, "rate": traffic / fp32_us, "noise": float(random.random()), "same": 1.0}
        exact = low_us(fp32_us, events)
        nodes.append(
            Sample(fp32_us=fp32_us, low_us=exact * float(1 + noise * random.normal()), events=events)
        )
    return nodes


def halved(fp32_us: float, events: dict[str, float]) -> float:
    return fp32_us * 0.0004 * events["rate"] + 2.0


def test_eq2_recovers_its_coefficients() -> None:
    model = fit_op(samples(50, halved), ("rate",), PAPER)
    assert model.weights == pytest.approx([0.0004])
    assert model.sigma_us == pytest.approx(2.0)
    assert model.low_us(10.0, {"rate": 500.0}) == pytest.approx(10 * 0.0004 * 500 + 2)


@pytest.mark.parametrize(
    "method", [m for m in METHODS if not m.keeps_samples and m is not PAPER], ids=lambda m: m.name
)
def test_a_sum_is_not_used_beyond_its_samples(method) -> None:
    """A much larger node has the ratio of the largest sample, not what a line drawn on says."""

    def low_us(fp32_us: float, events: dict[str, float]) -> float:
        return fp32_us * (0.4 + 0.2 * events["traffic"] / math.exp(12)) + 2

    model = fit_op(samples(40, low_us, noise=0.01), ("traffic", "rate"), method)
    largest = max(samples(40, low_us), key=lambda sample: sample.fp32_us)
    beyond = {**largest.events, "traffic": 100 * largest.events["traffic"]}
    expected = model.low_us(largest.fp32_us, largest.events)
    assert model.low_us(largest.fp32_us, beyond) == pytest.approx(expected)
    unbounded = replace(model, ranges=(), ratios=None)
    assert unbounded.low_us(largest.fp32_us, beyond) > 2 * expected
    with pytest.raises(ValueError, match="ranges"):
        replace(model, ranges=model.ranges[1:])


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_method_predicts_held_out_shapes(method) -> None:
    fitted, kept = split(samples(90, halved, noise=0.02))
    assert len(kept) == 30
    assert accuracy(fit_op(fitted, ("rate",), method), kept) > 0.9


def test_non_negative_weights() -> None:
    falling = samples(60, lambda fp32_us, events: fp32_us * (0.002 * events["rate"] - 0.1 * events["noise"]))
    free = fit_op(falling, ("rate", "noise"), METHODS[1])
    bounded = fit_op(falling, ("rate", "noise"), METHODS[2])
    assert min(free.weights) < 0
    assert min(bounded.weights) >= 0


def test_predictions_stay_within_the_ratios_seen() -> None:
    model = OpModel(features=(TIME,), weights=(0.5,), sigma_us=100.0, ratios=(0.4, 0.9))
    assert model.low_us(1.0, {}) == 0.9  # a constant fitted to large nodes says nothing about small ones
    assert model.low_us(10_000.0, {}) == pytest.approx(5100)
    assert fit_op(samples(20, halved), ("rate",), PAPER).ratios is None


def test_selection_takes_correlated_events_only() -> None:
    nodes = samples(100, halved, noise=0.05)
    rho = correlations(nodes)
    assert rho["traffic"] > 0.95
    assert abs(rho["noise"]) < 0.4
    assert rho["same"] == 0.0
    assert select(nodes) == ("traffic", "rate")
    assert select(nodes, threshold=1.1) == ("traffic",)  # the first of two that correlate alike


def test_negative_correlation_counts() -> None:
    nodes = [Sample(fp32_us=1.0, low_us=float(i), events={"down": -float(i)}) for i in range(1, 20)]
    assert select(nodes) == ("down",)


def test_neighbours_predict_by_the_ratios_near_them() -> None:
    """Kernels change at a size, which no line shows."""
    cliff = samples(60, lambda fp32_us, events: fp32_us * (0.5 if events["traffic"] > 5000 else 1.5))
    fitted, kept = split(cliff)
    (neighbours,) = (method for method in METHODS if method.neighbours)
    model = fit_op(fitted, (), neighbours)
    assert accuracy(model, kept) > 0.9 > accuracy(fit_op(fitted, ("traffic",), METHODS[2]), kept)
    (low, high) = model.ratios or (0.0, 0.0)
    assert (low, high) == pytest.approx((0.5, 1.5))
    assert len(model.samples) == len(fitted)
    met = fitted[0]
    assert model.low_us(met.fp32_us, met.events) == pytest.approx(met.low_us, rel=0.1)


def test_a_process_predicts_what_bends_smoothly_and_stays_within_the_ratios() -> None:
    bent = samples(
        60, lambda fp32_us, events: fp32_us * (0.5 + 1 / (1 + events["traffic"] / 3000)), noise=0.02
    )
    fitted, kept = split(bent)
    by_name = {method.name: method for method in METHODS}
    model = fit_op(fitted, (), by_name["process"])
    assert accuracy(model, kept) > 0.97
    assert accuracy(model, kept) > accuracy(fit_op(fitted, (), by_name["neighbours"]), kept)
    assert (
        max(map(abs, model.weights)) < 100
    )  # an event that never changes tells nothing, also of other nodes
    (low, high) = model.ratios or (0.0, 0.0)
    far = {name: 1e9 * value for name, value in fitted[0].events.items()}
    assert low <= model.low_us(1e9, far) / 1e9 <= high
    assert model.low_us(1e9, far) / 1e9 == pytest.approx(math.exp(model.center), rel=0.2)


def test_a_process_of_ratios_all_alike_is_that_ratio() -> None:
    alike = samples(12, lambda fp32_us, _: 0.5 * fp32_us)
    (process,) = (method for method in METHODS if method.process)
    assert fit_op(alike, (), process).low_us(7.0, alike[0].events) == pytest.approx(3.5)


def test_best_method_is_chosen_without_the_held_out_shapes() -> None:
    fitted, kept = split(samples(90, lambda fp32_us, _: 0.6 * fp32_us + 1, noise=0.01))
    best = fit_best(fitted)
    assert best is not None
    assert set(best.by_method) == {method.name for method in METHODS}
    assert accuracy(best.model, kept) > 0.97
    assert fit_best(fitted[:5]) is None


def test_model_accuracy_is_eq3() -> None:
    assert model_accuracy([11.0, 8.0], [10.0, 10.0]) == pytest.approx(1 - (0.1 + 0.2) / 2)
    assert model_accuracy([30.0], [10.0]) == pytest.approx(-1.0)


def test_eq1_recovers_r_and_constant() -> None:
    elements = [round(x) for x in np.geomspace(1e2, 1e7, 30)]
    cast = fit_cast(elements, [0.002 * n + 4 for n in elements])
    assert cast.r_us == pytest.approx(0.002)
    assert cast.c_i_us == pytest.approx(4)


def test_casts_that_outgrow_a_cache_take_longer() -> None:
    def exact_us(n: int) -> float:
        return 2.0 + 1e-4 * n + 2e-4 * max(0, n - (1 << 18))

    elements = [round(x) for x in np.geomspace(512, 1 << 23, 24)]
    cast = fit_cast(elements, [exact_us(n) for n in elements])
    assert [knee.elements for knee in cast.knees if knee.more_us > 1e-9] == [1 << 18]
    assert [cast.cast_us(n) for n in (700, 1 << 20)] == pytest.approx([exact_us(700), exact_us(1 << 20)])
    assert fit_cast(elements, [exact_us(n) for n in elements], relative=False).knees == ()
    assert str(cast) == "100.0 to 300.0 us per million elements + 2.00 us"


def test_a_few_large_casts_are_no_cache() -> None:
    elements = [1000, 10_000, 100_000, 1_000_000]
    assert fit_cast(elements, [2.0, 3.0, 12.0, 900.0]).knees == ()


def test_scaled_casts_take_longer_at_every_size() -> None:
    cast = CastModel(r_us=1e-3, c_i_us=2.0, knees=(Knee(elements=1000, more_us=1e-3),))
    assert [cast.scaled(1.5).cast_us(n) for n in (10, 5000)] == pytest.approx(
        [1.5 * cast.cast_us(n) for n in (10, 5000)]
    )


def test_relative_fit_does_not_sacrifice_small_casts() -> None:
    elements = [100, 1000, 10_000, 1_000_000]
    measured = [2.0, 2.1, 4.0, 500.0]  # steeper beyond the cache
    relative, absolute = fit_cast(elements, measured), fit_cast(elements, measured, relative=False)
    assert abs(relative.cast_us(100) - 2) < abs(absolute.cast_us(100) - 2)


def test_fp32_time_from_shapes() -> None:
    random = np.random.default_rng(0)
    rows = [
        {
            "moved_bytes": float(random.uniform(1e3, 1e7)),
            "flops": float(random.uniform(1e3, 1e9)),
            "waves": 1.0,
            "beyond_l2_bytes": 0.0,
        }
        for _ in range(40)
    ]
    times = [row["moved_bytes"] / 1e3 + row["flops"] / 1e5 + 5 for row in rows]
    model = fit_time(rows, times)
    assert model.fp32_us(rows[0]) == pytest.approx(times[0], rel=1e-3)
    assert min(model.weights) >= 0
    assert model.residual is None  # the sum is exact, and samples could only add noise


def test_fp32_times_that_no_sum_explains_are_corrected_by_samples() -> None:
    random = np.random.default_rng(1)

    def drawn() -> tuple[dict[str, float], float]:
        flops = float(10 ** random.uniform(5, 9))
        intensity = float(10 ** random.uniform(-1, 2))
        row = {"moved_bytes": flops / intensity, "flops": flops, "waves": 1.0, "beyond_l2_bytes": 0.0}
        # The rate of thin products falls with the root of their intensity.
        return row, flops / 1e5 * max(1.0, (30 / intensity) ** 0.5)

    fitted, tests = [drawn() for _ in range(60)], [drawn() for _ in range(60)]
    events, times = map(list, zip(*fitted, strict=True))

    def score(model: TimeModel) -> float:
        return model_accuracy([model.fp32_us(row) for row, _ in tests], [us for _, us in tests])

    corrected = fit_time(events, times)
    assert corrected.residual is not None
    assert score(corrected) > 0.9 > score(fit_time(events, times, keeps_samples=False))


def model(**changes: object) -> OpModel:
    good = {"features": ("flops",), "weights": (1.0,), "sigma_us": 0.0, "ratios": (0.5, 1.0)}
    return OpModel(**(good | changes))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: model(weights=()), "1 features have 0 weights"),
        (lambda: model(weights=(math.nan,)), "not finite"),
        (lambda: model(sigma_us=math.inf), "not finite"),
        (lambda: model(ratios=(0.0, 1.0)), "ratios are"),
        (lambda: model(ratios=(1.0, 0.5)), "ratios are"),
        (lambda: TimeModel(features=("flops",), weights=(1.0, 2.0), constant_us=0.0), "1 features have 2"),
        (lambda: TimeModel(features=("flops",), weights=(-1.0,), constant_us=0.0), "is negative"),
        (lambda: model(samples=((1.0,),)), "a number for each feature"),
        (lambda: CastModel(r_us=-1e-9, c_i_us=1.0), "r_us is -1e-09"),
        (lambda: CastModel(r_us=1e-9, c_i_us=math.nan), "c_i_us is nan"),
        (lambda: Knee(elements=0, more_us=1.0), "a knee at 0 elements"),
        (lambda: Knee(elements=9, more_us=-1.0), "a knee at 9 elements"),
        (lambda: Sample(fp32_us=0.0, low_us=1.0, events={}), "fp32_us is 0.0"),
        (lambda: Sample(fp32_us=1.0, low_us=math.nan, events={}), "low_us is nan"),
    ],
)
def test_values_that_cannot_be_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_what_a_sample_was_made_from_may_change() -> None:
    events = {"flops": 1.0}
    sample = Sample(fp32_us=1.0, low_us=1.0, events=events)
    events["flops"] = 2.0
    assert sample.events == {"flops": 1.0}
    with pytest.raises(TypeError):
        sample.events["flops"] = 3.0  # type: ignore[index]


def test_a_model_that_predicts_no_time_at_all_is_the_worst_one(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = TimeModel(features=("flops",), weights=(0.0,), constant_us=0.0)
    monkeypatch.setattr(fit, "_time_model", lambda rows, correction: nothing)
    assert fit._time_score([({"flops": 1.0}, 2.0)] * 20, None) == -math.inf
