"""Densities, divergences, flows, rankings, and what optimizers and evaluations compute."""

import numpy as np

from tests.formulas.formula import Formula, Tensor, concat
from tests.formulas.geometry import near
from tests.formulas.learning import dense


def lgamma(x: Tensor) -> Tensor:
    """Stirling's series behind three steps of the recurrence."""
    y = x + 3.0
    series = (y - 0.5) * y.log() - y + 0.9189385332 + 1.0 / (y * 12.0)
    return series - (x * (x + 1.0) * (x + 2.0)).log()


def digamma(x: Tensor) -> Tensor:
    y = x + 3.0
    series = y.log() - 0.5 / y - 1.0 / (y * y * 12.0)
    return series - 1.0 / x - 1.0 / (x + 1.0) - 1.0 / (x + 2.0)


def normal_cdf(x: Tensor) -> Tensor:
    return ((x * 0.70710678).erf() + 1.0) * 0.5


# --- likelihoods ---


def negative_binomial(f: Formula) -> Tensor:
    k = f.input(f.draw.poisson(f.number(1, 300), (32, 4)).astype(np.float32))
    r, p = dense(f, 32, 4).softplus() + 0.1, dense(f, 32, 4, 2.0).sigmoid().clip(1e-5, 1 - 1e-5)
    count = lgamma(k + r) - lgamma(r) - lgamma(k + 1.0)
    return count + r * p.log() + k * (1.0 - p).log()


def poisson_with_constant(f: Formula) -> Tensor:
    k = f.input(f.draw.poisson(f.number(5, 2000), (32, 4)).astype(np.float32))
    rate = f.input(f.formula_value(k) + 1.0)
    return k * rate.log() - rate - lgamma(k + 1.0)


def beta_density(f: Formula) -> Tensor:
    a, b = (f.uniform(32, 4, low=0.5, high=f.number(1, 100)) for _ in range(2))
    x = f.uniform(32, 4, low=1e-4, high=1 - 1e-4)
    return (a - 1.0) * x.log() + (b - 1.0) * (1.0 - x).log() + lgamma(a + b) - lgamma(a) - lgamma(b)


def dirichlet_kl(f: Formula) -> Tensor:
    a = dense(f, 16, 10).softplus() + 1.0
    total = a.sum()
    return lgamma(total) - lgamma(a).sum() + ((a - 1.0) * (a.log() - total.log())).sum()


def student_t(f: Formula) -> Tensor:
    z = dense(f, 32, 4, f.number(0.01, 100))
    return ((z * z / 4.0 + 1.0).log()) * -2.5


def mixture_density(f: Formula) -> Tensor:
    y = f.normal(32, 1, scale=3.0)
    weight, mean, spread = dense(f, 32, 5).log_softmax(), dense(f, 32, 5, 3.0), dense(f, 32, 5)
    z = (y - mean) * (-spread).exp()
    return (weight - spread - z * z * 0.5).reduced("LogSumExp", -1)


def discretized_logistic(f: Formula) -> Tensor:
    """The probability of one of 256 levels is a difference of two sigmoids."""
    x = f.input(f.draw.integers(0, 256, (32, 8)).astype(np.float32) / 127.5 - 1.0)
    centered, inverse = x - dense(f, 32, 8, 0.3), (dense(f, 32, 8)).exp() * f.number(1, 10)
    upper = ((centered + 1.0 / 255.0) * inverse).sigmoid()
    lower = ((centered - 1.0 / 255.0) * inverse).sigmoid()
    return (upper - lower).max(f.constant(np.float32(1e-12))).log()


def cox_with_margin(f: Formula) -> Tensor:
    risk = dense(f, f.size(64, 1024), 1, 3.0)
    top = risk.most(None)
    return risk - ((risk - top).exp().cumsum(0).log() + top)


def concordance(f: Formula) -> Tensor:
    time, risk = f.uniform(256, 1, high=3000.0), f.normal(256, 1)
    later = (time < time.transpose()).real()
    hit = (risk > risk.transpose()).real() * later
    return hit.sum(None) / later.sum(None)


def categorical_by_gumbel(f: Formula) -> Tensor:
    u = f.uniform(16, 64, low=1e-6, high=0.999999)
    return (dense(f, 16, 64) - (-(u.log())).log()) * 2.0


# --- divergences ---


def kl_of_gaussians(f: Formula) -> Tensor:
    m, s = f.normal(32, 8), f.uniform(32, 8, low=0.3, high=3.0)
    n, t = near(f, m, 0.05), near(f, s, 0.02)
    return (t / s).log() + (s * s + (m - n) ** 2.0) / (t * t * 2.0) - 0.5


def kl_of_learned_gaussians(f: Formula) -> Tensor:
    m, s, n, t = (dense(f, 32, 8, 0.5) for _ in range(4))
    return ((t - s + ((s * 2.0).exp() + (m - n) ** 2.0) / ((t * 2.0).exp() * 2.0)) - 0.5).sum()


def distance_of_gaussians(f: Formula) -> Tensor:
    s = f.uniform(32, 8, low=0.1, high=5.0)
    t = near(f, s, 0.05).abs()
    return (s + t - (s * t).sqrt() * 2.0).sum()


def hellinger(f: Formula) -> Tensor:
    p = dense(f, 16, 32)
    q = p + f.normal(16, 32, scale=0.2)
    return 1.0 - (p.softmax() * q.softmax()).sqrt().sum()


def bhattacharyya(f: Formula) -> Tensor:
    p = dense(f, 16, 32)
    q = p + f.normal(16, 32, scale=0.2)
    return -((p.softmax() * q.softmax()).sqrt().sum().log())


def mean_discrepancy(f: Formula) -> Tensor:
    x = f.normal(32, 8)
    y = near(f, x, 0.3)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        d = a.reshape(32, 1, 8) - b.reshape(1, 32, 8)
        return ((d * d).sum() * -0.1).exp().mean(None)

    return kernel(x, x) + kernel(y, y) - kernel(x, y) * 2.0


def energy_distance(f: Formula) -> Tensor:
    x, y = f.normal(64, 1), f.normal(64, 1, mean=0.3)
    a, b, c = ((u - v.transpose()).abs().mean(None) for u, v in ((x, y), (x, x), (y, y)))
    return a * 2.0 - b - c


def ranked_probability(f: Formula) -> Tensor:
    """CRPS of a Gaussian."""
    z = dense(f, 32, 4, f.number(0.1, 3))
    density = (z * z * -0.5).exp() * 0.39894228
    return z * (normal_cdf(z) * 2.0 - 1.0) + density * 2.0 - 0.56418958


def kernel_alignment(f: Formula) -> Tensor:
    x = f.normal(32, 8, mean=f.number(0.1, 20))
    y = x @ f.weight(8, 8)
    x, y = x - x.mean(0), y - y.mean(0)
    cross = x.transpose() @ y
    a, b = x.transpose() @ x, y.transpose() @ y
    return (cross**2.0).sum(None) / ((a**2.0).sum(None).sqrt() * (b**2.0).sum(None).sqrt())


def decorrelated(f: Formula) -> Tensor:
    """VICReg: squares beside the diagonal of a covariance."""
    x = dense(f, 256, 16, f.number(0.1, 20))
    d = x - x.mean(0)
    c = (d.transpose() @ d) / 255.0 * f.constant(1.0 - np.eye(16))
    return (c * c).sum(None) / 16.0


def kl_of_gammas(f: Formula) -> Tensor:
    a, b = dense(f, 32, 4).softplus() + 0.5, dense(f, 32, 4).softplus() + 0.5
    return (a - b) * digamma(a) - lgamma(a) + lgamma(b)


def kl_of_betas(f: Formula) -> Tensor:
    a, b = (f.uniform(32, 4, low=0.5, high=f.number(2, 60)) for _ in range(2))
    c, d = near(f, a, 0.05).abs() + 0.1, near(f, b, 0.05).abs() + 0.1
    whole = lgamma(c) + lgamma(d) - lgamma(c + d) - lgamma(a) - lgamma(b) + lgamma(a + b)
    return whole + (a - c) * digamma(a) + (b - d) * digamma(b) + (c - a + d - b) * digamma(a + b)


def evidential(f: Formula) -> Tensor:
    v, a = dense(f, 32, 1).softplus() + 1e-3, dense(f, 32, 1).softplus() + 1.0
    b, e = dense(f, 32, 1).softplus() + 1e-3, dense(f, 32, 1)
    twice = b * (v + 1.0) * 2.0
    data = (3.14159265 / v).log() * 0.5 - a * twice.log() + (a + 0.5) * (e * e * v + twice).log()
    return data + lgamma(a) - lgamma(a + 0.5)


# --- flows and diffusion ---


def glow(f: Formula) -> Tensor:
    s = (f.normal(1, 32, scale=0.1) + 1.0).abs()
    return s.log().sum() * f.number(64, 4096) - f.normal(1, 1)


def rational_spline(f: Formula) -> Tensor:
    """Widths and heights of bins by softmax, a place within its bin."""
    w, h = (dense(f, 32, 8).softmax() * 0.99 + 0.00125 for _ in range(2))
    x = f.uniform(32, 1, low=0.05, high=0.95)
    left = w.cumsum() - w
    inside = (x > left).real() * (x < left + w).real()
    t = ((x - left) * inside).sum() / (w * inside).sum()
    slope = (h / w * inside).sum()
    return slope * (t * (1.0 - t) * 2.0 + t * t) / (slope + (2.0 - slope * 2.0) * t * (1.0 - t))


def preconditioned(f: Formula) -> Tensor:
    """EDM: scales of input, skip and output by the noise level."""
    sigma = f.uniform(16, 1, low=0.002, high=80.0)
    x = f.normal(16, 64) * sigma
    both = (sigma * sigma + 0.25).sqrt()
    return x * (0.25 / (both * both)) + (x / both) @ f.weight(64, 64) * (sigma * 0.5 / both)


def consistency(f: Formula) -> Tensor:
    sigma = f.uniform(16, 1, low=0.002, high=2.0)
    s = sigma - 0.002
    return s * 0.5 / (sigma * sigma + 0.25).sqrt() * (f.normal(16, 64) @ f.weight(64, 64))


def exponential_solver(f: Formula) -> Tensor:
    """DPM-Solver: a small step in half the logarithm of the signal to noise."""
    a = f.uniform(16, 1, low=0.05, high=0.99)
    b = f.input(f.formula_value(a) * 0.995)
    lam, nxt = ((v.log() - (1.0 - v * v).log() * 0.5) for v in (a, b))
    return ((nxt - lam).exp() - 1.0) * f.normal(16, 64)


def clipped_weight(f: Formula) -> Tensor:
    a = f.uniform(16, 1, low=0.0001, high=0.99999)
    snr = a / (1.0 - a)
    return snr.min(f.constant(np.float32(5.0))) / snr


def score(f: Formula) -> Tensor:
    x, sigma = f.normal(16, 32, scale=3.0), f.number(0.01, 1)
    noisy = near(f, x, sigma)
    return (x - noisy) / (sigma * sigma)


# --- rankings and classification ---


def asymmetric(f: Formula) -> Tensor:
    p = dense(f, 32, 16, 4.0).sigmoid()
    less = (1.0 - p + 0.05).min(f.constant(np.float32(1.0)))
    return less.max(f.constant(np.float32(1e-8))).log() * (1.0 - less) ** 4.0


def huge_vocabulary(f: Formula) -> Tensor:
    n = f.size(5000, 20000)
    p = dense(f, 8, n, 3.0).log_softmax()
    return p.sum() * (-0.1 / n) - p.pick(f.below(n, 8, 1)) * 0.9


def contrast_to_noise(f: Formula) -> Tensor:
    """NCE against a noise distribution over a large vocabulary."""
    q = f.uniform(32, 1, low=1e-7, high=1e-3)
    x = dense(f, 32, 1, 3.0) - (q * 64.0).log()
    return -(x.sigmoid().log())


def ranked_pairs(f: Formula) -> Tensor:
    """LambdaRank: differences of discounts times logistic losses."""
    n = f.size(16, 200)
    s = dense(f, n, 1, 2.0)
    rank = f.constant(1.0 / np.log2(np.arange(n) + 2.0).reshape(n, 1))
    weight = (rank - rank.transpose()).abs()
    return (((s - s.transpose()) * -1.0).softplus() * weight).mean()


def approximate_kl(f: Formula) -> Tensor:
    """PPO: the ratio less 1 less its logarithm."""
    p = dense(f, 64, 50, 3.0).log_softmax().pick(f.below(50, 64, 1))
    d = p - f.input(f.formula_value(p) + 0.05 * f.draw.standard_normal((64, 1)))
    return d.exp() - 1.0 - d


def probit(f: Formula) -> Tensor:
    return -(normal_cdf(dense(f, 32, 4, f.number(0.5, 2.5)) - 1.0).clip(1e-7, 1.0).log())


def skill(f: Formula) -> Tensor:
    """TrueSkill: a density over a probability."""
    z = f.uniform(64, 1, low=-3.0, high=3.0)
    return (z * z * -0.5).exp() * 0.39894228 / normal_cdf(z)


def upper_bound(f: Formula) -> Tensor:
    n = f.input(f.draw.integers(1, 5000, (64, 8)).astype(np.float32))
    return f.uniform(64, 8) + (n.sum().log() * 2.0 / n).sqrt()


def bins_compared(f: Formula) -> Tensor:
    """A histogram by comparing places in it."""
    x = f.uniform(1, 512, high=f.number(1, 100))
    place = (x / (x.most() + 1e-6) * 16.0).floor()
    return place.equal(f.constant(np.arange(16, dtype=np.float32).reshape(16, 1))).real().sum()


def edges_passed(f: Formula) -> Tensor:
    edges = f.constant(np.linspace(0, 1, f.size(10, 256)).reshape(1, -1))
    return (f.uniform(256, 1) > edges).real().sum().integer()


def ranks(f: Formula) -> Tensor:
    """The area under a curve by ranks: a sum of thousands less the least it may be."""
    n = f.size(128, 512)
    s = f.normal(n, 1)
    hot = f.mask(1, n, share=0.5).reshape(n, 1)
    rank = (s > s.transpose()).real().sum() + 1.0
    hits = hot.sum(0)
    return ((rank * hot).sum(0) - hits * (hits + 1.0) * 0.5) / (hits * (float(n) - hits))


def spearman(f: Formula) -> Tensor:
    n = f.size(32, 256)
    x = f.normal(n, 1)
    y = near(f, x, 0.1)
    a, b = ((v > v.transpose()).real().sum() for v in (x, y))
    return 1.0 - ((a - b) ** 2.0).sum(0) * (6.0 / (n * (n * n - 1.0)))


def chi_squared(f: Formula) -> Tensor:
    o = f.input(f.draw.poisson(f.number(20, 3000), (8, 8)).astype(np.float32))
    e = o.sum(0) * o.sum(1) / o.sum(None)
    return ((o - e) ** 2.0 / e).sum(None)


def mutual_information(f: Formula) -> Tensor:
    n = f.input(f.draw.integers(1, 2000, (8, 8)).astype(np.float32))
    return (n * n.sum(None) / (n.sum(0) * n.sum(1))).log()


def precision_of_words(f: Formula) -> Tensor:
    """BLEU: a mean of logarithms and a penalty for brevity."""
    hit = f.input(f.draw.integers(50, 4000, (8, 4)).astype(np.float32))
    length = f.input(f.draw.integers(3000, 9000, (8, 1)).astype(np.float32))
    return (hit / (hit + length)).log().mean().exp() * (1.0 - 9000.0 / length).exp()


# --- optimizers ---


def adam_in_graph(f: Formula) -> Tensor:
    g = (f.normal(32, 16).transpose() @ f.normal(32, 16)) * f.number(1e-6, 1)
    t = f.input(np.array([[f.size(1, 10, 1000)]])).real()
    m, v = g * 0.1, g * g * 0.001
    one = 1.0 - f.constant(np.float32(0.9)) ** t
    two = 1.0 - f.constant(np.float32(0.999)) ** t
    return (m / one) / ((v / two).sqrt() + 1e-8)


def decay_of_weights(f: Formula) -> Tensor:
    w = f.normal(64, 16)
    return w * (1.0 - 1e-5) - w


def preconditioner(f: Formula) -> Tensor:
    """Shampoo: an inverse fourth root, coupled Newton steps."""
    g = f.normal(8, 32)
    a = (g @ g.transpose()) / 32.0 + f.constant(np.eye(8) * 1e-3)
    a = a / (a * f.constant(np.eye(8))).sum(None)
    x, m = f.constant(np.eye(8)), a
    for _ in range(4):
        t = f.constant(np.eye(8)) * 1.5 - m * 0.5
        x, m = x @ t, t @ t @ m
    return x


def line_search(f: Formula) -> Tensor:
    """Decrease of a loss in a small step, beside the decrease that the slope promises."""
    x, w = f.normal(64, 16), f.normal(16, 1)
    y = x @ w
    g = (x.transpose() @ y) / 32.0
    less = (x @ (w - g * 1e-3)) ** 2.0
    return ((y**2.0).mean(None) - less.mean(None)) / ((g * g).sum(None) * 1e-3)


def eigenvalues_of_two(f: Formula) -> Tensor:
    a, d = f.uniform(32, 1, low=1.0, high=5.0), f.uniform(32, 1, low=1.0, high=5.0)
    b = f.uniform(32, 1, low=0.1, high=1.0)
    root = ((a - d) ** 2.0 + b * b * 4.0).sqrt()
    return concat((a + d + root) * 0.5, (a + d - root) * 0.5)


def orthogonal_rows(f: Formula) -> Tensor:
    """Gram and Schmidt on rows that are all but parallel."""
    a = f.normal(1, 16)
    b, c = near(f, a, f.number(0.05, 1)), near(f, a, f.number(0.05, 1))
    a = a / (a * a).sum().sqrt()
    b = b - a * (a * b).sum()
    b = b / (b * b).sum().sqrt()
    c = c - a * (a * c).sum() - b * (b * c).sum()
    return c / (c * c).sum().sqrt()
