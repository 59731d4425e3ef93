"""Formulas of state spaces, long memories, preferences, routing, and what is computed from neighbours."""

import math

import numpy as np

from tests.formulas.formula import Formula, Tensor, concat
from tests.formulas.geometry import near
from tests.formulas.learning import dense

TINY = 1e-6


def zeros(f: Formula, size: int) -> Tensor:
    return f.constant(np.zeros(size, np.float32))


def bent(x: Tensor, op: str, compute: np.ufunc) -> Tensor:
    """A function that other formulas do not have."""
    return x.formula.node(op, x, compute=compute)


def rate_near_one(f: Formula, size: int) -> Tensor:
    """Factors that a sigmoid keeps just below one."""
    return (dense(f, 1, size, 0.2) + f.number(4, 7)).sigmoid().reshape(size)


# --- long memories ---


def momentum_of_a_layer(f: Formula) -> Tensor:
    rate = rate_near_one(f, 4)
    return f.repeat(f.normal(f.size(100, 300), 4, mean=0.1), zeros(f, 4), lambda m, g: m * rate + g)


def return_by_scan(f: Formula) -> Tensor:
    rate = rate_near_one(f, 4)
    return f.repeat(f.normal(300, 4, mean=1.0), zeros(f, 4), lambda v, r: v * rate + r)


def survival_by_scan(f: Formula) -> Tensor:
    hazard = (dense(f, 300, 4, 0.3) - 6.0).sigmoid()
    return f.repeat(1.0 - hazard, f.constant(np.ones(4, np.float32)), lambda s, r: s * r)


def growth_by_scan(f: Formula) -> Tensor:
    gain = dense(f, 100, 4, f.number(1e-3, 5e-3)) + 1.0
    return f.repeat(gain, f.constant(np.ones(4, np.float32)), lambda s, r: s * r) - 1.0


def growth_by_product(f: Formula) -> Tensor:
    return (dense(f, 16, f.size(4, 16), f.number(1e-3, 2e-2)) + 1.0).product() - 1.0


def slow_decay(f: Formula) -> Tensor:
    t = f.size(100, 400)
    step = dense(f, t, 8).softplus() * f.number(1e-3, 1e-2)
    rows = concat((-step).exp(), f.normal(t, 8, mean=0.3))
    return f.repeat(rows, zeros(f, 8), lambda h, r: h * r.part(0, 8, 0) + r.part(8, 16, 0))


def turning_state(f: Formula) -> Tensor:
    """Eigenvalues just inside the circle."""
    angle, rate = f.uniform(4, low=0.01, high=0.3), (-f.uniform(4, low=5e-4, high=0.01)).exp()
    c, s = rate * angle.cos(), rate * angle.sin()

    def turn(z: Tensor, u: Tensor) -> Tensor:
        x, y = z.part(0, 4, 0), z.part(4, 8, 0)
        return concat(x * c - y * s + u, x * s + y * c)

    return f.repeat(f.normal(f.size(100, 300), 4), zeros(f, 8), turn)


def steps_of_a_flow(f: Formula) -> Tensor:
    """Sum of many small steps."""
    start, weight, step = dense(f, 16, 8), f.weight(8, 8), f.number(2e-3, 1e-2)
    x = start
    for _ in range(f.size(4, 12, 20)):
        x = x + (x @ weight).tanh() * step
    return (x - start) / step


# --- state spaces ---


def discretized_input(f: Formula) -> Tensor:
    step = f.input(np.exp(f.draw.uniform(math.log(1e-3), math.log(0.1), (16, 1))))
    rate = f.constant(-np.arange(1, 17, dtype=np.float32))
    return ((step * rate).exp() - 1.0) / rate


def masked_decay(f: Formula) -> Tensor:
    """State space duality: a product of decays for each pair of places."""
    t = f.size(32, 64)
    total = (dense(f, 4, t).softplus() * -f.number(0.1, 4)).cumsum()
    below = f.constant(np.tril(np.ones((t, t), bool)))
    pairs = total.reshape(4, t, 1) - total.reshape(4, 1, t)
    decay = pairs.else_(below, np.float32(-np.inf)).exp()
    return ((f.normal(4, t, 8) @ f.normal(4, t, 8).transpose()) * decay) @ f.normal(4, t, 16)


def input_of_a_gated_unit(f: Formula) -> Tensor:
    gate = dense(f, 32, 8).sigmoid()
    decay = f.uniform(8, low=4.0, high=9.0).sigmoid().log() * gate * 8.0
    return (1.0 - (decay * 2.0).exp()).sqrt() * f.normal(32, 8)


def stabilized_memory(f: Formula) -> Tensor:
    t, d = f.size(32, 64), 8
    keep = (dense(f, t, 1) + f.number(1, 5)).sigmoid().log().cumsum(0)
    below = f.constant(np.tril(np.ones((t, t), bool)))
    weight = (keep - keep.transpose() + dense(f, 1, t, 3.0)).else_(below, np.float32(-np.inf))
    top = weight.most()
    score = (f.normal(t, d) @ f.normal(t, d).transpose()) / math.sqrt(d) * (weight - top).exp()
    return (score / (score.sum().abs().max((-top).exp()) + TINY)) @ f.normal(t, d)


def decay_per_channel(f: Formula) -> Tensor:
    """A running mean whose first weights vanish beside the last."""
    t = f.size(32, 128)
    place = f.arange(t).reshape(t, 1)
    weight = dense(f, t, 8, 2.0) - place * f.input(-np.exp(f.draw.uniform(-5, 0, 8)))
    share = (weight - weight.most(0)).exp()
    return (share * f.normal(t, 8)).cumsum(0) / share.cumsum(0)


def kernel_mean(f: Formula) -> Tensor:
    weight = ((dense(f, 32, 1, 2.0) - f.normal(1, 20)) ** 2.0 * -f.number(0.5, 4)).exp()
    return (weight * f.normal(1, 20)).sum() / weight.sum()


def retention(f: Formula) -> Tensor:
    t, decay = f.size(64, 256), 1 - 2.0 ** -f.rng.choice((5, 6, 7, 8))
    apart = f.arange(t).reshape(t, 1) - f.arange(t)
    weight = (apart.relu() * math.log(decay)).exp() * (apart > -0.5).real()
    score = (f.normal(t, 8) @ f.normal(t, 8).transpose()) * (weight / weight.sum().sqrt())
    return (score / score.sum().abs().max(f.constant(1.0))) @ f.normal(t, 8)


# --- preferences ---


def token_pairs(f: Formula, words: int = 32) -> tuple[Tensor, Tensor]:
    """Log-probabilities of tokens under a policy and its reference, of two answers each."""
    t = f.size(16, 64, 256)
    x, weight = f.normal(4 * t, 8), f.weight(8, words)
    other = f.formula_value(weight) + 0.01 * f.draw.standard_normal((8, words))
    label = f.below(words, 4 * t, 1)
    policy, reference = ((x @ w).log_softmax().pick(label).reshape(4, t) for w in (weight, f.input(other)))
    return policy, reference


def direct_preference(f: Formula) -> Tensor:
    policy, reference = token_pairs(f)
    gain = policy.sum() - reference.sum()
    return -(((gain.part(0, 2, 0) - gain.part(2, 4, 0)) * 0.1).sigmoid().log())


def identity_preference(f: Formula) -> Tensor:
    policy, reference = token_pairs(f)
    gain = policy.mean() - reference.mean()
    return (gain.part(0, 2, 0) - gain.part(2, 4, 0) - 5.0) ** 2.0


def penalty_of_group_policy(f: Formula) -> Tensor:
    policy, reference = token_pairs(f)
    r = reference - policy
    return (r.exp() - r - 1.0).mean()


def matched_pairs(f: Formula) -> Tensor:
    """A sigmoid for every pair, of which few match."""
    n = f.size(8, 32)
    a, b = (v / (v * v).sum().sqrt() for v in (dense(f, n, 32), dense(f, n, 32)))
    match = f.constant((2 * np.eye(n) - 1).astype(np.float32))
    return -(((a @ b.transpose() * f.number(8, 100) - 10.0) * match).sigmoid().log()).sum(None) / n


def tempered_entropy(f: Formula) -> Tensor:
    q = f.number(1.001, 2)
    return (1.0 - (dense(f, 32, 10, 3.0).softmax() ** q).sum()) / (q - 1.0)


# --- routing and codebooks ---


def place_in_an_expert(f: Formula) -> Tensor:
    n = f.size(64, 512, 4096)
    share = dense(f, n, 8).softmax()
    chosen = f.node("Equal", share, share.most()).real()
    fits = (chosen.cumsum(0) * chosen < n / 8 + 0.5).real() * chosen
    return (fits * share).sum()


def spread_of_loads(f: Formula) -> Tensor:
    share = dense(f, f.size(512, 4096), 8).softmax()
    count = f.node("Equal", share, share.most()).real().sum(0)
    mean = count.mean()
    return ((count - mean) ** 2.0).mean() / (mean * mean + 1e-10)


def codebook_average(f: Formula) -> Tensor:
    n = f.size(256, 4096)
    code = f.node("Equal", f.below(32, n, 1), f.constant(np.arange(32))).real()
    count = f.uniform(32, low=1.0, high=500.0) * 0.99 + code.sum(0, keep=False) * 0.01
    total = count.sum(-1)
    count = (count + 1e-5) / (total + 32 * 1e-5) * total
    mean = f.normal(32, 8, scale=100.0) * 0.99 + (code.transpose() @ f.normal(n, 8)) * 0.01
    return mean / count.reshape(32, 1)


def code_of_levels(f: Formula) -> Tensor:
    half = f.constant(np.array([3.5, 2, 2, 2], np.float32))
    level = (dense(f, 64, 4, 2.0).tanh() * half).round() + 4.0
    return (level * f.constant(np.array([1, 8, 40, 200], np.float32))).sum().integer()


# --- angles, rotations, and steps behind other functions ---


def tangent_of_rotations(f: Formula) -> Tensor:
    """The coefficients of Rodrigues' formula at small angles."""
    w = dense(f, 32, 3, f.number(0.01, 1))
    t = ((w * w).sum() + 1e-10).sqrt()
    return concat(t.sin() / t, (1.0 - t.cos()) / (t * t), (t - t.sin()) / (t * t * t))


def turn_of_a_gyroscope(f: Formula) -> Tensor:
    rate = f.normal(f.size(16, 64), 3, scale=0.5) * 0.005

    def turn(q: Tensor, w: Tensor) -> Tensor:
        a, v = q.part(0, 1, 0), q.part(1, 4, 0)
        x, y, z = (v.part(i, i + 1, 0) for i in range(3))
        i, j, k = (w.part(i, i + 1, 0) for i in range(3))
        cross = concat(y * k - z * j, z * i - x * k, x * j - y * i)
        q = q + concat(-((v * w).sum(0)), w * a + cross)
        return q / (q * q).sum(0).sqrt()

    return f.repeat(rate, f.constant(np.eye(4, dtype=np.float32)[0]), turn)


def harmonics_of_a_voice(f: Formula) -> Tensor:
    pitch = f.input(f.draw.uniform(80, 400, (4, 1)) + f.draw.standard_normal((4, 500)))
    number = f.constant(np.arange(1, 9, dtype=np.float32).reshape(8, 1))
    turns = (pitch.reshape(4, 1, 500) * number / 24000.0).mod(1.0).cumsum()
    return (turns * (2 * math.pi)).sin() * 0.1


def bin_of_an_activation(f: Formula) -> Tensor:
    return ((dense(f, 64, 4, 2.0).elu() + 1.0) * f.number(10, 300)).floor().integer()


def bin_of_an_azimuth(f: Formula) -> Tensor:
    v = dense(f, 64, 2)
    sine = (v.part(0, 1) / (v * v).sum().sqrt()).clip(-0.99, 0.99)
    return ((bent(sine, "Asin", np.arcsin) + math.pi / 2) * (128 / math.pi)).floor().integer()


def row_of_a_latitude(f: Formula) -> Tensor:
    half = dense(f, 64, 1).tanh() * 0.7 + math.pi / 4
    return (bent(half, "Tan", np.tan).log() * (256 / math.pi)).floor().integer()


def level_of_a_box(f: Formula) -> Tensor:
    side = (dense(f, 64, 2).exp() * f.number(10, 100)).product().sqrt()
    return ((side / 224.0).log() / math.log(2) + 4.0).floor().clip(2.0, 5.0).integer()


def phase_of_a_product(f: Formula) -> Tensor:
    return (dense(f, 64, 3).exp().product() * f.number(5, 50)).cos()


# --- neighbours ---


def shrinking_alphas(f: Formula) -> Tensor:
    t = f.size(100, 1000)
    share = ((f.arange(t + 1) / t + 0.008) / 1.008 * (math.pi / 2)).cos() ** 2.0
    return (1.0 - share.part(1, t + 1) / share.part(0, t)).clip(0.0, 0.999)


def growth_of_neighbours(f: Formula) -> Tensor:
    path = dense(f, 8, 65, f.number(5e-3, 0.05)).cumsum()
    return path.part(1, 65).exp() - path.part(0, 64).exp()


def return_of_neighbours(f: Formula) -> Tensor:
    path = dense(f, 8, 65, f.number(5e-3, 0.05)).cumsum().exp()
    return path.part(1, 65) / path.part(0, 64) - 1.0


def opacity_between_samples(f: Formula) -> Tensor:
    inside = (dense(f, 16, 33) * f.number(10, 2000)).sigmoid()
    before, after = inside.part(0, 32), inside.part(1, 33)
    return ((before - after + 1e-5) / (before + 1e-5)).clip(0.0, 1.0)


# --- far from zero ---


def norm_of_gains(f: Formula) -> Tensor:
    x = dense(f, 16, 64, f.number(0.01, 0.1)) + f.number(1, 30)
    centered = x - x.mean()
    return centered / ((centered * centered).mean() + 1e-5).sqrt()


def softmax_far_from_zero(f: Formula) -> Tensor:
    return (dense(f, 16, 32, 0.1) + f.number(2, 100)).softmax()


def relative_change(f: Formula) -> Tensor:
    before = f.uniform(32, 4, low=50.0, high=500.0)
    return (before * (dense(f, 32, 4, 0.01) + 1.0) - before) / before


def deviance_of_claims(f: Formula) -> Tensor:
    y = f.input(f.draw.gamma(0.5, 200.0, (64, 1)) + 0.01)
    mean, p = near(f, y, 0.5).abs() + 0.1, f.number(1.1, 1.9)
    own = y ** (2 - p) / ((1 - p) * (2 - p)) - y * mean ** (1 - p) / (1 - p)
    return (own + mean ** (2 - p) / (2 - p)) * 2.0
