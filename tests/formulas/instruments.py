"""Formulas of instruments, climates, markets, bodies and samplers, with awkward data."""

import math

import numpy as np

from tests.formulas.densities import dense, near
from tests.formulas.formula import Formula, Tensor, concat

# --- weather and optics ---


def log_mean_temperature(f: Formula) -> Tensor:
    a = f.uniform(32, 8, low=5.0, high=60.0)
    b = near(f, a, f.number(0.01, 3))
    return (a - b) / (a / b).log()


def dew_point(f: Formula) -> Tensor:
    t, humid = f.uniform(64, 1, low=-20.0, high=45.0), f.uniform(64, 1, low=0.02, high=1.0)
    g = humid.log() + t * 17.62 / (t + 243.12)
    return g * 243.12 / (17.62 - g)


def air_mass(f: Formula) -> Tensor:
    zenith = f.uniform(64, 1, low=0.0, high=89.5)
    return 1.0 / ((zenith * (math.pi / 180)).cos() + (96.07995 - zenith) ** -1.6364 * 0.50572)


def refraction(f: Formula) -> Tensor:
    cosine = f.uniform(64, 1, low=0.02, high=0.999)
    ratio = f.number(0.6, 0.99)
    return (1.0 - (1.0 - cosine * cosine) * ratio**2).sqrt() - cosine * ratio


def reflectance(f: Formula) -> Tensor:
    cosine = (f.normal(64, 3) * f.normal(64, 3)).sum().tanh().abs()
    return (1.0 - cosine) ** 5.0 * 0.96 + 0.04


def phase_function(f: Formula) -> Tensor:
    g, cosine = f.number(0.5, 0.98), f.uniform(64, 8, low=-1.0, high=1.0)
    return (1 - g * g) / (1.0 + g * g - cosine * (2 * g)) ** 1.5


def absorbance(f: Formula) -> Tensor:
    before = f.uniform(32, 16, low=100.0, high=60000.0)
    return (before / near(f, before, f.number(0.5, 50))).log() * (1 / math.log(10))


def head_of_a_flow(f: Formula) -> Tensor:
    pressure, speed = f.uniform(64, 1, low=9e4, high=2e5), f.uniform(64, 1, low=1.0, high=30.0)
    return (near(f, pressure, 50.0) - pressure) / 9810.0 + speed * speed / 19.62


# --- sound ---


def a_weighting(f: Formula) -> Tensor:
    q = f.uniform(64, 1, low=20.0, high=16000.0) ** 2.0
    top = q * q * 12194.0**2
    return top / ((q + 20.6**2) * ((q + 107.7**2) * (q + 737.9**2)).sqrt() * (q + 12194.0**2))


def bark(f: Formula) -> Tensor:
    hertz = f.uniform(64, 1, low=20.0, high=16000.0)
    return (hertz * 0.00076).atan() * 13.0 + ((hertz / 7500.0) ** 2.0).atan() * 3.5


def low_pass_gain(f: Formula) -> Tensor:
    turn = f.uniform(64, 1, low=1e-3, high=0.5)
    return (1.0 - turn.cos()) / (turn.sin() / (2 * f.number(0.5, 2)) + 1.0)


def allan_variance(f: Formula) -> Tensor:
    phase = (f.normal(16, 256, scale=0.01) + 1.0).cumsum()
    second = phase.part(2, 256) - phase.part(1, 255) * 2.0 + phase.part(0, 254)
    return (second * second).mean() * 0.5


def intelligibility(f: Formula) -> Tensor:
    a = dense(f, 32, 30)
    b = near(f, a, f.number(0.05, 1))
    a, b = a - a.mean(), b - b.mean()
    return (a * b).sum() / ((a * a).sum() * (b * b).sum() + 1e-8).sqrt()


# --- bodies and populations ---


def two_compartments(f: Formula) -> Tensor:
    slow = f.uniform(32, 1, low=0.05, high=1.0)
    fast, t = near(f, slow, f.number(0.02, 1)), f.uniform(32, 8, low=0.1, high=24.0)
    return fast / (fast - slow) * ((-(slow * t)).exp() - (-(fast * t)).exp())


def hill(f: Formula) -> Tensor:
    x, n = f.uniform(32, 8, low=0.01, high=40.0), f.number(2, 8)
    return x**n / (x**n + f.number(1, 10) ** n)


def epidemic(f: Formula) -> Tensor:
    sick, well = f.uniform(32, 1, low=1.0, high=1e5), f.uniform(32, 1, low=1e5, high=1e7)
    new = sick * well * 0.3 / (sick + well)
    return (well - new) / (sick + well)


def membrane_potential(f: Formula) -> Tensor:
    inside, outside = f.uniform(64, 3, low=1.0, high=150.0), f.uniform(64, 3, low=1.0, high=150.0)
    share = f.constant(np.array([1.0, 0.04, 0.45], np.float32))
    return ((outside * share).sum() / (inside * share).sum()).log() * 26.7


def mortality(f: Formula) -> Tensor:
    age, rate = f.uniform(64, 1, low=20.0, high=100.0), f.number(0.06, 0.12)
    hazard = (age * rate).exp() * 1e-5
    return 1.0 - (-(hazard * ((math.exp(rate) - 1) / rate))).exp()


# --- fluids and fields ---


def shallow_water(f: Formula) -> Tensor:
    h = f.uniform(16, 64, low=1.0, high=1.2) + f.number(1, 300)
    u = f.normal(16, 64, scale=0.1)
    flux = h * u * u + h * h * 4.905
    return flux.part(1, 64) - flux.part(0, 63)


def lattice_equilibrium(f: Formula) -> Tensor:
    u, c = f.normal(64, 2, scale=0.05), f.constant(np.array([[1, -1, 0], [0, 1, -1]], np.float32))
    along, own = u @ c, (u * u).sum()
    return (along * 3.0 + along * along * 4.5 - own * 1.5 + 1.0) / 9.0


def courant_step(f: Formula) -> Tensor:
    u, c = f.normal(32, 32, scale=30.0), f.uniform(32, 32, low=330.0, high=350.0)
    return 1e-3 / (u.abs() + c).most(None)


def morse(f: Formula) -> Tensor:
    r = f.uniform(64, 1, low=0.9, high=1.6)
    return (1.0 - (-((r - 1.275) * 1.9)).exp()) ** 2.0 * 4.6


def pseudo_range(f: Formula) -> Tensor:
    sent = f.uniform(32, 1, low=0.067, high=0.09)
    return (near(f, sent, 1e-4) - sent) * 299792458.0


# --- time, colour and codes ---


def week_of_seconds(f: Formula) -> Tensor:
    seconds = f.input(f.draw.integers(0, 16_000_000, (64, 1)).astype(np.float32))
    return seconds.mod(604800.0) / 86400.0


def zone(f: Formula) -> Tensor:
    return ((f.uniform(64, 1, low=-180.0, high=179.9) + 180.0) / 6.0).floor().integer()


def morton(f: Formula) -> Tensor:
    cell = (f.uniform(64, 2) * 31.0).floor()
    return (cell.part(0, 1) * 32.0 + cell.part(1, 2)).integer()


def hue(f: Formula) -> Tensor:
    r, g, b = (dense(f, 32, 8).sigmoid() for _ in range(3))
    top, least = r.max(g).max(b), r.min(g).min(b)
    return ((g - b) / (top - least + 1e-6) + 6.0).mod(6.0)


def equalized(f: Formula) -> Tensor:
    counts = f.below(4000, 8, 64).real()
    return (counts.cumsum() / counts.sum() * 255.0).round().integer()


def between_classes(f: Formula) -> Tensor:
    counts = f.below(4000, 8, 64).real()
    low, high = counts.part(0, 24), counts.part(24, 64)
    first = (low * f.arange(24)).sum() / low.sum()
    second = (high * (f.arange(40) + 24.0)).sum() / high.sum()
    return low.sum() * high.sum() * (first - second) ** 2.0 / counts.sum() ** 2.0


# --- risk and preference ---


def pareto_tail(f: Formula) -> Tensor:
    shape, x = f.number(1e-3, 0.5), f.uniform(32, 8, low=0.01, high=20.0)
    return (x * shape + 1.0).log() * (1 + 1 / shape)


def volatility_smile(f: Formula) -> Tensor:
    forward = f.uniform(32, 1, low=50.0, high=150.0)
    strike = near(f, forward, f.number(0.05, 5))
    return (forward - strike) / (forward / strike).log() / (forward * strike).sqrt()


def gaussian_copula(f: Formula) -> Tensor:
    a, rho = f.normal(64, 1), f.number(0.5, 0.995)
    b = near(f, a, 0.2)
    return (a * b * (2 * rho) - (a * a + b * b) * rho**2) / (2 * (1 - rho**2)) - 0.5 * math.log(1 - rho**2)


def odds_ratio_preference(f: Formula) -> Tensor:
    chosen = -(dense(f, 32, 1).softplus() * f.number(1e-3, 1)) - 1e-3
    rejected = -(dense(f, 32, 1).softplus()) - 1e-3
    odds = [p - (1.0 - p.exp()).log() for p in (chosen, rejected)]
    return -((odds[0] - odds[1]).sigmoid().log())


def brevity(f: Formula) -> Tensor:
    length = f.below(400, 32, 1).real() + 5.0
    return (1.0 - near(f, length, 3.0) / length).min(f.constant(np.float32(0))).exp()


def expected_score(f: Formula) -> Tensor:
    a, b = f.uniform(64, 1, low=800.0, high=2800.0), f.uniform(64, 1, low=800.0, high=2800.0)
    return 1.0 / (((b - a) * (math.log(10) / 400)).exp() + 1.0)


# --- samplers and attention ---


def residual_of_speculation(f: Formula) -> Tensor:
    logits = dense(f, 16, 64, 3.0)
    p, q = logits.softmax(), near(f, logits, f.number(0.05, 0.5)).softmax()
    rest = (p - q).relu()
    return rest / (rest.sum() + 1e-10)


def sparsemax(f: Formula) -> Tensor:
    z = dense(f, 16, 32, 2.0)
    ordered = z.sorted()
    sums, ranks = ordered.cumsum(), f.arange(32) + 1.0
    inside = ((ordered * ranks + 1.0) > sums).real()
    number = inside.sum()
    return (z - ((ordered * inside).sum() - 1.0) / number).relu()


def hard_concrete(f: Formula) -> Tensor:
    u = f.uniform(32, 16, low=1e-6, high=0.999999)
    gate = ((u.log() - (1.0 - u).log() + dense(f, 32, 16)) / 0.66).sigmoid()
    return (gate * 1.2 - 0.1).clip(0.0, 1.0)


def contracted_space(f: Formula) -> Tensor:
    x = f.normal(64, 3, scale=f.number(1, 300))
    size = (x * x).sum().sqrt().max(f.constant(np.float32(1e-6)))
    return ((2.0 - 1.0 / size) * (x / size)).else_(size > 1.0, x)


def long_context_base(f: Formula) -> Tensor:
    power = (f.arange(32) * (1 / 32)) * -math.log(1e4 * f.number(1, 64))
    turn = f.input(f.draw.integers(0, 100_000, (16, 1)).astype(np.float32)) * power.exp()
    return concat(turn.cos(), turn.sin())


def aspect_penalty(f: Formula) -> Tensor:
    w, h = f.uniform(64, 1, low=1.0, high=900.0), f.uniform(64, 1, low=1.0, high=900.0)
    other = near(f, w, 5.0).max(f.constant(np.float32(1)))
    v = ((w / h).atan() - (other / h).atan()) ** 2.0 * (4 / math.pi**2)
    overlap = w.min(other) / w.max(other)
    return v / (1.0 - overlap + v + 1e-7)


def epipolar_error(f: Formula) -> Tensor:
    x = f.uniform(64, 2, low=0.0, high=1920.0)
    line = concat(f.normal(64, 2, scale=1e-3), f.normal(64, 1))
    ends = (x * line.part(0, 2)).sum() + line.part(2, 3)
    return ends * ends / (line.part(0, 2) ** 2.0).sum()


def group_advantage(f: Formula) -> Tensor:
    reward = near(f, f.constant(np.full((16, 8), f.number(1, 100), np.float32)), f.number(1e-3, 1))
    centered = reward - reward.mean()
    return centered / ((centered * centered).mean().sqrt() + 1e-4)


def gated_memory(f: Formula) -> Tensor:
    """A matrix that rows are written to, with exponential gates and a running maximum."""
    rows = dense(f, 64, 32)
    start = f.constant(np.zeros((1, 32), np.float32))
    return f.repeat(rows, start, lambda state, row: state * 0.999 + row.exp())


def leaky_average_of_squares(f: Formula) -> Tensor:
    rows, start = f.normal(128, 16, scale=f.number(1, 300)), f.constant(np.zeros(16, np.float32))
    spread = f.repeat(rows, start, lambda state, row: state * 0.9 + row * row * 0.1)
    return rows.part(0, 1, axis=0) / (spread + 1e-8).sqrt()
