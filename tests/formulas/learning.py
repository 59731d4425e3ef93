"""Reinforcement learning, diffusion, transport, likelihoods, contrast and what optimizers compute."""

import numpy as np

from tests.formulas.formula import Formula, Tensor, concat


def dense(f: Formula, rows: int, columns: int, scale: float = 1.0) -> Tensor:
    return (f.normal(rows, 32) @ f.weight(32, columns)) * scale


def squared_length(x: Tensor) -> Tensor:
    return (x * x).sum()


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / ((squared_length(a) * squared_length(b)).sqrt() + 1e-8)


# --- reinforcement learning ---


def temporal_difference(f: Formula) -> Tensor:
    value = f.normal(64, 1, mean=f.number(1, 300))
    following = f.input((f.formula_value(value) + 0.01 * f.draw.standard_normal((64, 1))) / 0.99)
    return f.normal(64, 1, scale=0.01) + following * 0.99 - value


def advantages(f: Formula) -> Tensor:
    """Generalized advantage estimation, backwards over eight steps."""
    values = [f.normal(16, 1, mean=50.0) for _ in range(9)]
    total = f.uniform(16, 1, high=0.1) + values[8] * 0.99 - values[7]
    for i in range(6, -1, -1):
        total = f.uniform(16, 1, high=0.1) + values[i + 1] * 0.99 - values[i] + total * 0.9405
    return total


def squashed_log_probability(f: Formula) -> Tensor:
    """SAC: the density of an action behind a tanh."""
    mean, spread = dense(f, 64, 4, 2.0), dense(f, 64, 4).clip(-5.0, 2.0)
    noise = f.normal(64, 4)
    raw = mean + spread.exp() * noise
    gaussian = noise * noise * -0.5 - spread - 0.9189385332
    return (gaussian - (1.0 - raw.tanh() ** 2.0 + 1e-6).log()).sum()


def stable_squashed_log_probability(f: Formula) -> Tensor:
    raw = dense(f, 64, 4, 6.0)
    return ((0.69314718 - raw - (raw * -2.0).softplus()) * 2.0).sum()


def smoothed_target(f: Formula) -> Tensor:
    """TD3: the smaller of two values of a noisy action."""
    action = (dense(f, 64, 4).tanh() + (f.normal(64, 4, scale=0.2)).clip(-0.5, 0.5)).clip(-1.0, 1.0)
    a, b = (action @ f.weight(4, 1) + 80.0 for _ in range(2))
    return f.normal(64, 1) + a.min(b) * 0.99


def projected_distribution(f: Formula) -> Tensor:
    """C51: the atoms that a shifted support falls between."""
    support = f.constant(np.linspace(-10, 10, 51).reshape(1, 51))
    target = (f.normal(32, 1) + support * 0.99).clip(-10.0, 10.0)
    place = (target + 10.0) / 0.4
    return (place - place.floor()) * dense(f, 32, 51).softmax()


def quantile_huber(f: Formula) -> Tensor:
    a, b = dense(f, 32, 16, 20.0).reshape(32, 16, 1), dense(f, 32, 16, 20.0).reshape(32, 1, 16)
    u = b - a
    small = u.abs().min(f.constant(np.float32(1.0)))
    huber = small * small * 0.5 + (u.abs() - small)
    tau = f.constant(((np.arange(16) + 0.5) / 16).reshape(1, 16, 1))
    return ((tau - (u < 0.0).real()).abs() * huber).mean().sum(1)


def entropy_below_maximum(f: Formula) -> Tensor:
    n = f.size(16, 64, 1000)
    p = (f.normal(32, n, scale=f.number(0.01, 0.1))).softmax()
    return float(np.log(n)) + (p * p.log()).sum()


def importance_weights(f: Formula) -> Tensor:
    """V-trace: a product of ratios along a trajectory."""
    new, old = f.normal(8, 64, scale=0.3, mean=-3.0), f.normal(8, 64, scale=0.3, mean=-3.0)
    return ((new - old).cumsum()).exp().min(f.constant(np.float32(1.0)))


def prioritized_weights(f: Formula) -> Tensor:
    p = f.uniform(256, 1, low=1e-6, high=1.0) ** 0.6
    w = ((p / p.sum(None)) * 100000.0) ** -0.4
    return w / w.most(None)


# --- diffusion and flows ---


def velocity(f: Formula) -> Tensor:
    """v-prediction: alpha * noise - sigma * x, by an angle near a quarter turn."""
    angle = f.uniform(16, 1, low=1.4, high=1.5707)
    return angle.cos() * f.normal(16, 64) - angle.sin() * (f.normal(16, 64) @ f.weight(64, 64))


def denoised_by_velocity(f: Formula) -> Tensor:
    a = f.uniform(16, 1, low=0.001, high=0.9999)
    return a.sqrt() * f.normal(16, 64) - (1.0 - a).sqrt() * (f.normal(16, 64) @ f.weight(64, 64))


def ddim_step(f: Formula) -> Tensor:
    a = f.uniform(16, 1, low=0.005, high=0.99)
    before = f.input(f.formula_value(a) * 0.998)
    x, noise = f.normal(16, 64), f.normal(16, 64) @ f.weight(64, 64)
    clean = (x - (1.0 - a).sqrt() * noise) / a.sqrt()
    return before.sqrt() * clean + (1.0 - before).sqrt() * noise


def karras_sigmas(f: Formula) -> Tensor:
    n = f.size(20, 50, 1000)
    ramp = f.arange(n) / float(n - 1)
    low, high = 0.002 ** (1 / 7), 80.0 ** (1 / 7)
    sigma = (ramp * (low - high) + high) ** 7.0
    return sigma.reshape(n, 1) * f.normal(1, 16) @ f.weight(16, 8)


def sigma_step(f: Formula) -> Tensor:
    """An Euler step between neighbouring noise levels."""
    sigma = f.uniform(16, 1, low=0.05, high=80.0)
    following = f.input(f.formula_value(sigma) * 0.997)
    x = f.normal(16, 64, scale=2.0)
    return (x - f.normal(16, 64)) / sigma * (following - sigma)


def posterior_variance(f: Formula) -> Tensor:
    beta = f.constant(np.linspace(1e-4, 0.02, 1000))
    cumulative = (1.0 - beta).log().cumsum(0).exp()
    before = concat(f.constant(np.ones(1)), cumulative.part(0, 999), axis=0)
    return (beta * (1.0 - before) / (1.0 - cumulative)).take(f.below(1000, 32)).reshape(32, 1)


def flow_matching(f: Formula) -> Tensor:
    t, noise, x = f.uniform(16, 1, high=0.999), f.normal(16, 64), f.normal(16, 64) @ f.weight(64, 64)
    path = t * x + (1.0 - t) * noise
    return (x - path) / (1.0 - t)


def affine_coupling(f: Formula) -> Tensor:
    """Forward and back again, less where it came from, times what is left."""
    x, h = f.normal(16, 32), f.normal(16, 32)
    s, t = (h @ f.weight(32, 32)).tanh() * 2.0, h @ f.weight(32, 32)
    return ((x * s.exp() + t) - t) * (-s).exp()


def planar_log_determinant(f: Formula) -> Tensor:
    slope = 1.0 - (dense(f, 64, 1, 3.0).tanh()) ** 2.0
    return (slope * f.uniform(64, 1, low=-0.99) + 1.0).abs().log()


# --- transport, recursions ---


def log_sinkhorn(f: Formula) -> Tensor:
    cost = (f.uniform(16, 16) * -1.0) / f.number(0.005, 0.1)
    u, v = f.constant(np.zeros((16, 1))), f.constant(np.zeros((1, 16)))
    for _ in range(3):
        u = -((cost + v).reduced("LogSumExp", -1))
        v = -((cost + u).reduced("LogSumExp", 0))
    return (cost + u + v).exp() * 16.0


def wasserstein_on_a_line(f: Formula) -> Tensor:
    x = f.uniform(8, f.size(64, 512))
    y = f.input(f.formula_value(x) + 1e-3 * f.draw.standard_normal(x.shape))
    return (x.cumsum() - y.cumsum()).abs().mean()


def crf_forward(f: Formula) -> Tensor:
    """The score of all paths, less that of one that is nearly all of it."""
    step = f.weight(8, 8)
    total = dense(f, 4, 8, 3.0)
    for _ in range(8):
        total = (total.reshape(4, 8, 1) + step.reshape(1, 8, 8)).reduced("LogSumExp", 1, keep=False)
        total = total + dense(f, 4, 8, 3.0)
    return total.reduced("LogSumExp", -1) - total.most()


def rnnt_recursion(f: Formula) -> Tensor:
    p = dense(f, 32, 2, 4.0).log_softmax()
    a = p.part(0, 1, 0).part(0, 1)
    for i in range(1, 32):
        row = p.part(i, i + 1, 0)
        a = (a + row.part(0, 1)) + ((row.part(1, 2) - row.part(0, 1)).exp() + 1.0).log()
    return a


def forward_probabilities(f: Formula) -> Tensor:
    """A hidden Markov model without logarithms, scaled in every step."""
    move = f.normal(6, 6).softmax()
    a, total = f.normal(4, 6).softmax(), None
    for _ in range(8):
        a = (a @ move) * dense(f, 4, 6, 3.0).softmax()
        c = a.sum()
        a = a / c
        total = c.log() if total is None else total + c.log()
    return total


# --- losses that compare ---


def cosine_loss(f: Formula) -> Tensor:
    a, apart = f.normal(32, 64), f.number(0.01, 0.1)
    return 1.0 - cosine(a, f.input(f.formula_value(a) + apart * f.draw.standard_normal((32, 64))))


def triplet_by_cosine(f: Formula) -> Tensor:
    a = f.normal(32, 64)
    b, c = (f.input(f.formula_value(a) + 0.05 * f.draw.standard_normal((32, 64))) for _ in range(2))
    return cosine(a, b) - cosine(a, c)


def triplet_by_distance(f: Formula) -> Tensor:
    a = f.normal(32, 64)
    b, c = (f.input(f.formula_value(a) + f.draw.standard_normal((32, 64))) for _ in range(2))
    c = b + f.normal(32, 64, scale=0.01)
    return squared_length(a - b).sqrt() - squared_length(a - c).sqrt()


def pairwise_preference(f: Formula) -> Tensor:
    reward = f.normal(32, 1, mean=f.number(1, 100))
    other = f.input(f.formula_value(reward) + 0.05 * f.draw.standard_normal((32, 1)))
    return -((reward - other).sigmoid().log())


def self_distillation(f: Formula) -> Tensor:
    """DINO: a centered and sharpened teacher."""
    teacher = ((dense(f, 32, 64) - f.normal(1, 64)) / 0.04).softmax()
    return -((teacher * (dense(f, 32, 64) / 0.1).log_softmax()).sum())


def supervised_contrast(f: Formula) -> Tensor:
    x = f.normal(64, 32)
    x = x / squared_length(x).sqrt()
    same = f.constant(np.equal.outer(np.arange(64) // 8, np.arange(64) // 8).astype(np.float32) - np.eye(64))
    scores = (x @ x.transpose()) / 0.07
    e = (scores - scores.most()).exp() * f.constant(1.0 - np.eye(64))
    return -((same * (scores - scores.most() - e.sum().log())).sum() / same.sum())


def barlow_twins(f: Formula) -> Tensor:
    a = f.normal(256, 16)
    b = f.input(f.formula_value(a) + 0.02 * f.draw.standard_normal((256, 16)))
    a, b = ((x - x.mean(0)) / (((x - x.mean(0)) ** 2.0).mean(0) + 1e-5).sqrt() for x in (a, b))
    c = (a.transpose() @ b) / 256.0
    return ((c - f.constant(np.eye(16))) ** 2.0).sum(None)


def variance_hinge(f: Formula) -> Tensor:
    x = dense(f, 256, 16, f.number(0.5, 1.2))
    d = x - x.mean(0)
    return (1.0 - ((d * d).sum(0) / 255.0 + 1e-4).sqrt()).relu()


def poly_loss(f: Formula) -> Tensor:
    p = dense(f, 32, 100, 4.0).softmax().pick(f.below(100, 32, 1))
    return (1.0 - p) * 2.0 - p.log()


def load_balance(f: Formula) -> Tensor:
    n, experts = f.size(512, 4096), 8
    p = dense(f, n, experts, 2.0).softmax()
    hot = f.constant(np.eye(experts, dtype=np.float32)[f.draw.integers(0, experts, n)])
    return (hot.mean(0) * p.mean(0)).sum(None) * float(experts) - 1.0


def lovasz_gradient(f: Formula) -> Tensor:
    """Differences of a running intersection over a running union."""
    n = f.size(64, 1000)
    label = f.mask(1, n, share=0.3)
    total = label.sum()
    inner, union = total - label.cumsum(), total + (1.0 - label).cumsum()
    jaccard = 1.0 - inner / union
    return (jaccard.part(1, n) - jaccard.part(0, n - 1)) * f.uniform(1, n - 1, high=2.0)


def unlikelihood(f: Formula) -> Tensor:
    p = dense(f, 32, 50, 6.0).softmax().pick(f.below(50, 32, 1))
    return -((1.0 - p).clip(1e-5, 1.0).log())


def gradient_penalty(f: Formula) -> Tensor:
    g = f.normal(16, 256, scale=1.0 / 16.0)
    return ((g * g).sum().sqrt() - 1.0) ** 2.0


def r1_penalty(f: Formula) -> Tensor:
    return (f.normal(16, 3072, scale=f.number(1e-5, 3)) ** 2.0).sum() * 5.0


def relative_improvement(f: Formula) -> Tensor:
    before = (dense(f, 64, 8, 3.0) ** 2.0).mean(None)
    x = f.normal(64, 64)
    a = (x * x).mean(None)
    b = ((x * 0.999) ** 2.0).mean(None)
    return (a - b) / a + before * 0.0


# --- optimizers and counters ---


def bias_correction(f: Formula) -> Tensor:
    step = f.input(np.array([[f.size(1, 3, 10, 1000)]])).real()
    m = (f.normal(32, 16).transpose() @ f.normal(32, 16)) * 0.1
    return m / (1.0 - f.constant(np.float32(0.999)) ** step)


def step_counter(f: Formula) -> Tensor:
    return f.input(np.array([[float(f.size(255, 2047, 4095, 100000))]], np.float32)) + 1.0


def moving_average(f: Formula) -> Tensor:
    """Change of an average of weights in one step."""
    average = f.normal(64, 16)
    weight = f.input(f.formula_value(average) + 1e-2 * f.draw.standard_normal((64, 16)))
    return (average * 0.999 + weight * 0.001) - average


def trust_ratio(f: Formula) -> Tensor:
    w, g = f.normal(64, 64), (f.normal(32, 64).transpose() @ f.normal(32, 64)) * f.number(1e-5, 1e-2)
    return g * ((w * w).sum(None).sqrt() / ((g * g).sum(None).sqrt() + 1e-9))


def factored_second_moment(f: Formula) -> Tensor:
    g = (f.normal(32, 64).transpose() @ f.normal(32, 64)) * f.number(1e-4, 1)
    square = g * g + 1e-30
    row, column = square.mean(1), square.mean(0)
    return g / ((row / row.mean(None)).sqrt() * column.sqrt())


def cosine_schedule(f: Formula) -> Tensor:
    step = f.input(f.draw.integers(0, 100000, (16, 1))).real()
    return ((step * (3.14159265 / 100000.0)).cos() + 1.0) * 0.5


def warmed_up(f: Formula) -> Tensor:
    step = f.input(f.draw.integers(1, 100000, (16, 1))).real()
    return (step**-0.5).min(step * 4000.0**-1.5) * 512.0**-0.5 * 1e3
