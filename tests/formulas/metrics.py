"""Metrics, markets, graphs, and statistics of samples."""

import numpy as np

from tests.formulas.formula import Formula, Tensor, concat
from tests.formulas.geometry import column, near
from tests.formulas.learning import dense


def spread(x: Tensor) -> Tensor:
    d = x - x.mean()
    return (d * d).mean()


# --- metrics ---


def explained_variance(f: Formula) -> Tensor:
    y = f.normal(8, 128, mean=f.number(1, 50))
    return spread(y - near(f, y, 0.05)) / spread(y)


def unexplained_variance(f: Formula) -> Tensor:
    """One less a coefficient of determination that is all but one."""
    y = f.normal(8, 128)
    p = near(f, y, f.number(0.03, 0.2))
    return 1.0 - (1.0 - ((y - p) * (y - p)).sum() / ((y - y.mean()) * (y - y.mean())).sum())


def percentage_error(f: Formula) -> Tensor:
    y = f.uniform(32, 8, low=0.01, high=f.number(1, 500))
    p = near(f, y, 0.01)
    return ((y - p).abs() * 2.0 / (y.abs() + p.abs())).mean() * 100.0


def gini_of_sorted(f: Formula) -> Tensor:
    x = f.uniform(8, f.size(50, 300)).sorted()
    n = x.shape[-1]
    weights = f.constant(n + 1 - 2 * (np.arange(n) + 1))
    return (x * weights.real()).sum() / (x.sum() * float(n))


def kendall(f: Formula) -> Tensor:
    """Pairs in the same order, less those in the other, over all."""
    x = f.normal(64, 1)
    y = near(f, x, 0.3)
    pairs = (x - x.transpose()).sign() * (y - y.transpose()).sign()
    return pairs.sum(None) / (64.0 * 63.0)


def brier_skill(f: Formula) -> Tensor:
    y = f.mask(8, 64, share=0.02)
    p = (dense(f, 8, 64) * 0.1 - 4.0).sigmoid()
    base = y.mean()
    return 1.0 - ((p - y) * (p - y)).mean() / (base * (1.0 - base) + 1e-4)


def log_likelihood_ratio(f: Formula) -> Tensor:
    """G-test: counts times logarithms of counts over what is expected."""
    n = f.input(f.draw.integers(200, 3000, (16, 2, 2)).astype(np.float32))
    expected = n.sum(-1) * n.sum(-2) / n.sum(-1).sum(-2)
    return (n * (n / expected).log()).sum(-1).sum(-2) * 2.0


def distance_of_feature_statistics(f: Formula) -> Tensor:
    """FID of diagonal covariances."""
    x = f.normal(512, 32, mean=2.0)
    y = f.normal(512, 32, mean=2.0)
    a, b = x.mean(0), y.mean(0)
    u, v = ((x - a) * (x - a)).mean(0), ((y - b) * (y - b)).mean(0)
    return ((a - b) * (a - b)).sum() + (u + v - (u * v).sqrt() * 2.0).sum()


def panoptic_quality(f: Formula) -> Tensor:
    a = f.input(f.draw.integers(300, 20000, (16, 1)).astype(np.float32))
    b = f.input(f.draw.integers(300, 20000, (16, 1)).astype(np.float32))
    common = a.min(b) * 0.9
    return common / (a + b - common)


def signal_distortion_ratio(f: Formula) -> Tensor:
    """Scale invariant: what is left beside the projection on the target."""
    s = f.normal(4, 512)
    x = near(f, s, f.number(0.003, 0.1))
    target = s * ((x * s).sum() / ((s * s).sum() + 1e-8))
    noise = x - target
    return ((target * target).sum() / ((noise * noise).sum() + 1e-8)).log() * 4.3429448


def structural_similarity(f: Formula) -> Tensor:
    """By moments, in levels of 0 to 255."""
    x = f.input(f.draw.integers(0, 256, (8, 64)).astype(np.float32))
    y = near(f, x, 3.0)
    a, b = x.mean(), y.mean()
    u, v, w = (x * x).mean() - a * a, (y * y).mean() - b * b, (x * y).mean() - a * b
    return ((a * b * 2.0 + 6.5) * (w * 2.0 + 58.5)) / ((a * a + b * b + 6.5) * (u + v + 58.5))


def hit_rate(f: Formula) -> Tensor:
    """The share of scores above that of the target, counted."""
    s = dense(f, 32, 200, 3.0)
    target = s.part(0, 1)
    return ((s > target).integer()).sum().real() + 1.0


def area_by_ranks(f: Formula) -> Tensor:
    """Mann and Whitney: ranks of hits, less what they are at least."""
    n = f.size(200, 3000)
    ranks = f.input(f.draw.permutation(n).astype(np.float32).reshape(1, n) + 1.0)
    hit = f.mask(1, n, share=0.4)
    hits = hit.sum()
    return ((ranks * hit).sum() - hits * (hits + 1.0) * 0.5) / (hits * (float(n) - hits))


def balanced_accuracy(f: Formula) -> Tensor:
    m = f.input(f.draw.integers(1, 9000, (8, 2, 2)).astype(np.float32))
    rate = m / m.sum()
    return rate.part(0, 1, 1).part(0, 1, 2) + rate.part(1, 2, 1).part(1, 2, 2) - 1.0


# --- markets ---


def beta_of_a_stock(f: Formula) -> Tensor:
    m = f.normal(8, 250, scale=0.01)
    s = near(f, m, 0.005)
    return ((s * m).mean() - s.mean() * m.mean()) / ((m * m).mean() - m.mean() * m.mean())


def annuity(f: Formula) -> Tensor:
    rate = f.uniform(32, 1, low=0.001, high=0.02)
    return (1.0 - (rate + 1.0) ** -f.size(12, 120, 360)) / rate


def forward_rate(f: Formula) -> Tensor:
    t = f.uniform(32, 1, low=1.0, high=10.0)
    near_bond, far_bond = (t * -0.03).exp(), ((t + 0.25) * -0.031).exp()
    return (near_bond / far_bond - 1.0) * 4.0


def convergence_of_averages(f: Formula) -> Tensor:
    """MACD of prices: two smooth averages, one less the other."""
    price = f.input(100.0 + np.cumsum(f.draw.standard_normal((40, 4)), 0) * 0.3)
    fast = slow = price.part(0, 1, 0)
    for i in range(1, 40):
        now = price.part(i, i + 1, 0)
        fast, slow = fast * 0.846 + now * 0.154, slow * 0.926 + now * 0.074
    return fast - slow


def relative_strength(f: Formula) -> Tensor:
    price = f.input(500.0 + np.cumsum(f.draw.standard_normal((4, 64)), 1))
    change = price.part(1, 64) - price.part(0, 63)
    gain, loss = change.relu().mean(), (-change).relu().mean()
    return 100.0 - 100.0 / (gain / (loss + 1e-6) + 1.0)


def band_of_prices(f: Formula) -> Tensor:
    price = f.input(f.number(50, 2000) + f.draw.standard_normal((16, 20)))
    return (price.part(19, 20) - price.mean()) / (spread(price) + 1e-9).sqrt()


def implied_volatility(f: Formula) -> Tensor:
    """Three steps of Newton's on the price of a call at the money."""
    price = f.uniform(16, 1, low=4.0, high=12.0)
    s = f.uniform(16, 1, low=0.15, high=0.3)
    for _ in range(3):
        value = ((s * 0.35355339).erf()) * 100.0
        vega = ((s * s) * -0.125).exp() * 39.894228
        s = s - (value - price) / vega
    return s


def micro_price(f: Formula) -> Tensor:
    bid = f.uniform(64, 1, low=20.0, high=f.number(21, 60))
    ask = f.input(f.formula_value(bid) + 0.05)
    sizes = f.uniform(64, 2, low=1.0, high=900.0)
    share = column(sizes, 0) / sizes.sum()
    return (ask * share + bid * (1.0 - share)) - (bid + ask) * 0.5


def geometric_walk(f: Formula) -> Tensor:
    steps = f.normal(8, 250, scale=0.01)
    return ((steps - 5e-5).cumsum().exp() * 100.0 - 100.0).relu().mean()


def expected_shortfall(f: Formula) -> Tensor:
    losses = f.normal(8, 200, scale=f.number(0.01, 100)).sorted()
    return losses.part(0, 10).mean() - losses.part(9, 10)


# --- graphs ---


def adjacency(f: Formula, n: int) -> np.ndarray:
    a = (f.draw.random((n, n)) < 0.3).astype(np.float32)
    return np.maximum(np.maximum(a, a.T), np.eye(n, dtype=np.float32))


def symmetric_propagation(f: Formula) -> Tensor:
    a = f.input(adjacency(f, 48))
    degree = a.sum() ** -0.5
    return (a * degree * degree.transpose()) @ f.normal(48, 16)


def smoothness_on_a_graph(f: Formula) -> Tensor:
    """Difference of a node from the mean of its neighbours."""
    a = f.input(adjacency(f, 48))
    x = f.input(f.number(1, 30) + 0.1 * f.draw.standard_normal((48, 8)))
    return x - (a @ x) / a.sum()


def rank_of_pages(f: Formula) -> Tensor:
    """Change in the last of twelve steps, in millionths."""
    a = adjacency(f, 48)
    move = f.constant(a / a.sum(0))
    before = now = f.constant(np.full((48, 1), 1 / 48))
    for _ in range(5):
        before, now = now, (move @ now) * 0.85 + 0.15 / 48
    return now * 48.0 + before * 0.0


def modularity(f: Formula) -> Tensor:
    a = f.input(adjacency(f, 48))
    degree, twice = a.sum(), a.sum(None)
    same = f.constant(np.equal.outer(np.arange(48) // 12, np.arange(48) // 12).astype(np.float32))
    return ((a - degree * degree.transpose() / twice) * same).sum(None) / twice


def radial_bessel(f: Formula) -> Tensor:
    r = f.uniform(32, 1, low=0.02, high=4.9)
    n = f.constant((np.arange(8) + 1).reshape(1, 8)).real()
    return ((r * n) * 0.62831853).sin() / r * 0.63245553


def smooth_cutoff(f: Formula) -> Tensor:
    """A polynomial that vanishes with two derivatives at the end."""
    u = f.uniform(64, 1, low=0.7, high=0.98)
    return 1.0 - (u**6.0) * 28.0 + (u**7.0) * 48.0 - (u**8.0) * 21.0


def equivariant_step(f: Formula) -> Tensor:
    x = f.input(f.number(1, 100) + f.draw.standard_normal((16, 3)))
    d = x.reshape(16, 1, 3) - x.reshape(1, 16, 3)
    return (d / ((d * d).sum().sqrt() + 1.0)).sum(1, keep=False)


def edges_and_degrees(f: Formula) -> Tensor:
    """A mean over neighbours, their number by a sum of ones."""
    hot = f.input(adjacency(f, 64))
    return concat((hot @ f.normal(64, 8)) / (hot.sum() + 1e-6), hot.sum())


# --- statistics ---


def t_of_paired_samples(f: Formula) -> Tensor:
    a = f.normal(8, 30, mean=f.number(10, 300))
    d = near(f, a, 0.2) - a
    return d.mean() / (spread(d) / 29.0).sqrt()


def excess_kurtosis(f: Formula) -> Tensor:
    x = f.normal(8, 256, scale=f.number(0.01, 100))
    d = x - x.mean()
    square = (d * d).mean()
    return ((d * d) * (d * d)).mean() / (square * square) - 3.0


def skewness(f: Formula) -> Tensor:
    x = f.input(f.draw.exponential(f.number(0.01, 100), (8, 256)))
    d = x - x.mean()
    return (d * d * d).mean() / ((d * d).mean()) ** 1.5


def autocorrelation(f: Formula) -> Tensor:
    x = f.normal(8, 128, mean=f.number(1, 30))
    d = x - x.mean()
    return (d.part(1, 128) * d.part(0, 127)).sum() / (d * d).sum()


def effective_sample_size(f: Formula) -> Tensor:
    w = (dense(f, 8, 128, f.number(0.5, 5))).exp()
    return w.sum() * w.sum() / (w * w).sum()


def coefficient_of_variation(f: Formula) -> Tensor:
    x = f.uniform(8, 64, low=100.0, high=110.0) * f.number(0.1, 100)
    return (((x * x).mean() - x.mean() * x.mean()) / (x.mean() * x.mean())).sqrt()


def z_of_proportions(f: Formula) -> Tensor:
    n = f.input(f.draw.integers(1000, 60000, (16, 2)).astype(np.float32))
    hits = f.input(np.floor(f.formula_value(n) * f.draw.uniform(0.4, 0.41, (16, 2))))
    rate = hits / n
    pooled = hits.sum() / n.sum()
    scale = (pooled * (1.0 - pooled) * (1.0 / n).sum()).sqrt()
    return (column(rate, 0) - column(rate, 1)) / scale
