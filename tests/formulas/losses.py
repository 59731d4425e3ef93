"""Losses and metrics: logarithms near 0 and 1, small differences of long sums, integers that are compared."""

import numpy as np

from tests.formulas.formula import Formula, Tensor


def logits(f: Formula, rows: int, columns: int, scale: float = 4.0) -> Tensor:
    return (f.normal(rows, 32) @ f.weight(32, columns)) * scale


def cross_entropy(f: Formula) -> Tensor:
    rows, classes = f.size(), f.size(10, 100, 1000)
    return -logits(f, rows, classes).log_softmax().pick(f.below(classes, rows, 1)).mean(None, keep=False)


def cross_entropy_by_softmax(f: Formula) -> Tensor:
    rows, classes = f.size(), f.size(10, 100)
    return -(logits(f, rows, classes).softmax().pick(f.below(classes, rows, 1)) + f.number(1e-12, 1e-6)).log()


def binary_cross_entropy(f: Formula) -> Tensor:
    p = logits(f, f.size(), 16).sigmoid().clip(1e-6, 1 - 1e-6)
    y = f.mask(*p.shape, share=0.5)
    return -(y * p.log() + (1.0 - y) * (1.0 - p).log())


def binary_cross_entropy_on_logits(f: Formula) -> Tensor:
    x = logits(f, f.size(), 16)
    y = f.mask(*x.shape, share=0.5)
    return x.relu() - x * y + ((-x.abs()).exp() + 1.0).log()


def focal(f: Formula) -> Tensor:
    p = logits(f, f.size(), 16, 6.0).sigmoid().clip(1e-4, 1 - 1e-4)
    return -((1.0 - p) ** 2.0) * p.log() - p**2.0 * (1.0 - p).log()


def label_smoothing(f: Formula) -> Tensor:
    rows, classes = f.size(), f.size(100, 1000)
    p, e = logits(f, rows, classes).log_softmax(), f.number(0.01, 0.2)
    return -(1.0 - e) * p.pick(f.below(classes, rows, 1)) - e * p.mean()


def z_loss(f: Formula) -> Tensor:
    x = logits(f, f.size(), 100)
    top = x.most()
    return (((x - top).exp().sum().log() + top) ** 2.0) * 1e-4


def kl_divergence(f: Formula) -> Tensor:
    p, q = (logits(f, 16, 64).log_softmax() for _ in range(2))
    return (p.exp() * (p - q)).sum()


def jensen_shannon(f: Formula) -> Tensor:
    p, q = (logits(f, 16, 64).softmax() for _ in range(2))
    m = ((p + q) * 0.5 + 1e-9).log()
    return (p * ((p + 1e-9).log() - m) + q * ((q + 1e-9).log() - m)).sum() * 0.5


def temperature_kl(f: Formula) -> Tensor:
    x, t = logits(f, 16, 64), f.number(0.05, 8.0)
    p, q = (x / t).log_softmax(), ((x + f.normal(16, 64, scale=0.05)) / t).log_softmax()
    return (p.exp() * (p - q)).sum() * (t * t)


def gaussian_nll(f: Formula) -> Tensor:
    x = f.normal(16, 32)
    variance = (x @ f.weight(32, 8)).softplus() + f.number(1e-8, 1e-4)
    return (variance.log() + (x @ f.weight(32, 8)) ** 2.0 / variance) * 0.5


def vae_kl(f: Formula) -> Tensor:
    h = f.normal(16, 32)
    mean, logvar = h @ f.weight(32, 8), (h @ f.weight(32, 8)) * 3.0
    return ((mean**2.0 + logvar.exp() - logvar - 1.0) * 0.5).sum()


def poisson_nll(f: Formula) -> Tensor:
    rate = (f.normal(16, 32) @ f.weight(32, 8)) * 2.0
    return rate.exp() - f.input(f.draw.poisson(50, (16, 8)).astype(np.float32)) * rate


def log_probability_against_reference(f: Formula) -> Tensor:
    """DPO: a difference of two sums of thousands."""
    length, classes = f.size(256, 512), 50
    p = logits(f, length, classes).log_softmax().pick(f.below(classes, length, 1))
    total = p.sum(0)
    reference = f.input(f.formula_value(total) + f.draw.standard_normal((1, 1)))
    return -((total - reference) * 0.1).sigmoid().log()


def policy_ratio(f: Formula) -> Tensor:
    p = logits(f, 64, 50).log_softmax().pick(f.below(50, 64, 1))
    old = f.input(f.formula_value(p) + 1e-2 * f.draw.standard_normal((64, 1)))
    ratio, gain = (p - old).exp(), f.normal(64, 1)
    return -(ratio * gain).min(ratio.clip(0.8, 1.2) * gain)


def contrastive(f: Formula) -> Tensor:
    n = f.size(16, 64, 256)
    x, y = f.normal(n, 32), f.normal(n, 32)
    x, y = (v / ((v * v).sum().sqrt() + 1e-8) for v in (x, y))
    scores = (x @ y.transpose()) / f.number(0.01, 0.2)
    return -scores.log_softmax().pick(f.constant(np.arange(n).reshape(n, 1)))


def masked_contrastive(f: Formula) -> Tensor:
    n = f.size(16, 64)
    x = f.normal(n, 32)
    x = x / (x * x).sum().sqrt()
    scores = (x @ x.transpose()) / 0.07 - f.constant(np.eye(n)) * 1e9
    return -scores.log_softmax().most()


def triplet(f: Formula) -> Tensor:
    a = f.normal(32, 64) @ f.weight(64, 64)
    b, c = a + f.normal(32, 64, scale=0.01), f.normal(32, 64) @ f.weight(64, 64)
    return (((a - b) ** 2.0).sum().sqrt() - ((a - c) ** 2.0).sum().sqrt() + 0.2).relu()


def hinge(f: Formula) -> Tensor:
    return (1.0 - logits(f, 32, 1) * (f.mask(32, 1) * 2.0 - 1.0)).relu().mean(None)


def huber_in_pixels(f: Formula) -> Tensor:
    error = (f.normal(32, 16) @ f.weight(16, 4)) * 300.0
    quadratic = error.abs().min(f.constant(np.float32(1.0)))
    return quadratic**2.0 * 0.5 + (error.abs() - quadratic)


def mean_square_in_pixels(f: Formula) -> Tensor:
    return (((f.normal(32, 16) @ f.weight(16, 4)) * 500.0 - f.uniform(32, 4, high=640.0)) ** 2.0).mean(None)


def log_cosh(f: Formula) -> Tensor:
    return ((f.normal(32, 16) @ f.weight(16, 4)) * 5.0).cosh().log()


def wing(f: Formula) -> Tensor:
    x = ((f.normal(32, 16) @ f.weight(16, 4)) * 20.0).abs()
    return ((x / 2.0 + 1.0).log() * 10.0).else_(x < 10.0, x - 7.9)


def dice(f: Formula) -> Tensor:
    p, y = logits(f, 4, 4096).sigmoid(), f.mask(4, 4096, share=0.05)
    return 1.0 - ((p * y).sum() * 2.0 + 1e-5) / (p.sum() + y.sum() + 1e-5)


def tversky(f: Formula) -> Tensor:
    p, y = logits(f, 4, 8192).sigmoid(), f.mask(4, 8192, share=0.02)
    hit = (p * y).sum()
    return 1.0 - hit / (hit + (p * (1.0 - y)).sum() * 0.3 + ((1.0 - p) * y).sum() * 0.7)


def pearson(f: Formula) -> Tensor:
    x = f.normal(8, 256, mean=f.number(1, 100))
    y = x + f.normal(8, 256)
    x, y = x - x.mean(), y - y.mean()
    return (x * y).sum() / ((x * x).sum() * (y * y).sum()).sqrt()


def pearson_by_moments(f: Formula) -> Tensor:
    x = f.normal(8, 256, mean=f.number(1, 30))
    y = x + f.normal(8, 256)
    covariance = (x * y).mean() - x.mean() * y.mean()
    variances = ((x * x).mean() - x.mean() ** 2.0) * ((y * y).mean() - y.mean() ** 2.0)
    return covariance / variances.sqrt()


def entropy(f: Formula) -> Tensor:
    p = logits(f, 16, 256).softmax()
    return -(p * (p + 1e-12).log()).sum()


def perplexity(f: Formula) -> Tensor:
    return (-logits(f, 64, 100).log_softmax().pick(f.below(100, 64, 1)).mean(None)).exp()


def accuracy_count(f: Formula) -> Tensor:
    return (f.normal(f.size(3000, 5000), 1) > 0.0).real().sum(0)


def calibration_bins(f: Formula) -> Tensor:
    p = f.uniform(256, 1)
    return (p * float(f.size(10, 15, 100))).floor().integer()


def segment_sum(f: Formula) -> Tensor:
    """A product with one-hot rows: values of hundreds, summed."""
    rows, groups = f.size(1024, 4096), 8
    hot = f.constant(np.eye(groups, dtype=np.float32)[f.draw.integers(0, groups, rows)].T)
    return hot @ f.uniform(rows, 16, high=f.number(10, 1000))


def ctc_like(f: Formula) -> Tensor:
    steps = [logits(f, 16, 8).log_softmax() for _ in range(6)]
    total = steps[0]
    for step in steps[1:]:
        top = total.most()
        total = ((total - top).exp().sum().log() + top) + step
    return total


def quantile(f: Formula) -> Tensor:
    error, q = f.normal(32, 16) @ f.weight(16, 4), f.number(0.01, 0.99)
    return (error * q).max(error * (q - 1.0))


def cox_partial_likelihood(f: Formula) -> Tensor:
    risk = logits(f, f.size(64, 512), 1)
    return risk - (risk.exp().cumsum(0)).log()
