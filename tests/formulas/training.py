"""Rewards, schedules, samplers, embeddings that are compared, optimizers, and norms."""

import numpy as np

from tests.formulas.formula import Formula, Tensor, concat
from tests.formulas.geometry import near, unit
from tests.formulas.learning import cosine, dense, squared_length

# --- rewards ---


def symmetric_logarithm(f: Formula) -> Tensor:
    """Dreamer: out by exp(|x|) - 1."""
    x = dense(f, 32, 8, f.number(0.02, 3))
    return x.sign() * (x.abs().exp() - 1.0)


def two_hot(f: Formula) -> Tensor:
    x = f.normal(32, 1, scale=f.number(1, 200))
    y = x.sign() * (x.abs() + 1.0).log()
    place = (y.clip(-20.0, 20.0) + 20.0) / 0.15686275
    low = place.floor()
    return concat(low + 1.0 - place, place - low, low)


def rescaled_value(f: Formula) -> Tensor:
    """R2D2, there and back: what a value loses is not seen, so it has to come back."""
    x = f.normal(32, 1, scale=f.number(0.1, 100))
    h = x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + x * 0.001
    root = ((h.abs() + 1.001) * 0.004 + 1.0).sqrt()
    return h.sign() * (((root - 1.0) / 0.002) ** 2.0 - 1.0)


def conservative_penalty(f: Formula) -> Tensor:
    q = dense(f, 32, 10) + f.number(1, 300)
    return q.reduced("LogSumExp", -1) - q.most()


def normalized_advantages(f: Formula) -> Tensor:
    r = f.normal(1, 256, mean=f.number(1, 300))
    a = r - f.input(f.formula_value(r) + 0.1 * f.draw.standard_normal((1, 256)))
    d = a - a.mean()
    return d / ((d * d).mean().sqrt() + 1e-8)


def confidence_bound(f: Formula) -> Tensor:
    visits = f.input(f.draw.integers(0, 5000, (16, 8)).astype(np.float32))
    return f.normal(16, 8) + ((visits.sum() + 1.0).log() / (visits + 1.0)).sqrt() * 1.4


def rescaled_output(f: Formula) -> Tensor:
    """PopArt keeps what an output was when its statistics change."""
    w = dense(f, 32, 8)
    old, new = f.number(50, 300), f.number(50, 300)
    return (w * 3.0 + old - new) / 3.0 * 3.0 + new - old


def retrace(f: Formula) -> Tensor:
    r, q = f.normal(8, 16, scale=0.1), f.normal(8, 17, mean=30.0)
    d = r + q.part(1, 17) * 0.99 - q.part(0, 16)
    return (d * f.constant((0.95 ** np.arange(16)).reshape(1, 16))).sum()


# --- schedules and diffusion ---


def skip_and_output(f: Formula) -> Tensor:
    """EDM: what a network's output is scaled by."""
    s = f.uniform(32, 1, low=0.002, high=f.number(1, 80))
    s2 = s * s + 0.25
    return f.normal(32, 8) * (0.25 / s2) + dense(f, 32, 8) * (s * 0.5 / s2.sqrt())


def weight_of_noise(f: Formula) -> Tensor:
    s = f.uniform(32, 1, low=0.01, high=10.0)
    return (s * s + 0.25) / ((s * 0.5) * (s * 0.5))


def ancestral_step(f: Formula) -> Tensor:
    """How much noise comes back between two levels that are close."""
    s = f.uniform(32, 1, low=0.1, high=10.0)
    t = f.input(f.formula_value(s) * 0.98)
    return (t * t * (s * s - t * t) / (s * s)).sqrt() * f.normal(32, 8)


def second_order_solver(f: Formula) -> Tensor:
    """DPM++: exp(-h) - 1 of a small h."""
    a, b = f.uniform(32, 1, low=1.0, high=1.02), f.uniform(32, 1, low=1.05, high=1.06)
    h = b - a
    return f.normal(32, 8) * 0.9 - ((-h).exp() - 1.0) * f.normal(32, 8)


def betas_of_a_cosine(f: Formula) -> Tensor:
    t = f.input(f.draw.integers(10, 900, (32, 1)).astype(np.float32))

    def bar(u: Tensor) -> Tensor:
        c = ((u / 1000.0 + 0.008) * 1.5583344).cos()
        return c * c

    return (1.0 - bar(t + 1.0) / bar(t)).clip(0.0, 0.999)


def clipped_signal_to_noise(f: Formula) -> Tensor:
    a = f.uniform(32, 1, low=0.001, high=0.9999)
    r = a / (1.0 - a)
    return r.min(f.constant(np.float32(5.0))) / r


def decay_by_step(f: Formula) -> Tensor:
    """Share that an average keeps, less one: (1 + t) / (10 + t) - 1."""
    t = f.input(f.draw.integers(1, 100000, (32, 1)).astype(np.float32))
    return ((t + 1.0) / (t + 10.0) - 1.0) * f.normal(32, 4)


def warm_restarts(f: Formula) -> Tensor:
    t = f.input(f.draw.integers(0, 50000, (32, 1)).astype(np.float32))
    return ((t.mod(1000.0) * 0.0031415927).cos() + 1.0) * 0.5


def polynomial_decay(f: Formula) -> Tensor:
    t = f.input(f.draw.integers(99000, 99990, (32, 1)).astype(np.float32))
    return (1.0 - t / 100000.0) ** 0.9


def one_cycle(f: Formula) -> Tensor:
    t = f.input(f.draw.integers(0, 30000, (32, 1)).astype(np.float32))
    up, down = t / 9000.0, (t - 9000.0) / 21000.0
    return up.min(1.0 - down).relu() * 0.1


# --- samplers ---


def systematic_resampling(f: Formula) -> Tensor:
    w = dense(f, 4, 64, 2.0).softmax().cumsum()
    u = f.constant(((np.arange(32) + 0.5) / 32).reshape(1, 32, 1))
    return (w.reshape(4, 1, 64) < u).real().sum().integer()


def typical_tokens(f: Formula) -> Tensor:
    logs = dense(f, 16, 100, 3.0).log_softmax()
    entropy = -((logs.exp() * logs).sum())
    return ((-logs) - entropy).abs()


def least_probability(f: Formula) -> Tensor:
    """min-p: what is less than a share of the largest is left out."""
    p = f.input(f.draw.dirichlet(np.full(100, 0.1), 16))
    keep = f.node("GreaterOrEqual", p, p.most() * 0.05)
    return (p * keep.real()) / (p * keep.real()).sum()


def accepted_moves(f: Formula) -> Tensor:
    """Metropolis: energies of hundreds, differences of ones."""
    e = f.normal(64, 1, mean=f.number(10, 1000))
    return (e - near(f, e, 0.5)).exp().min(f.constant(np.float32(1.0)))


def inverse_normal(f: Formula) -> Tensor:
    """A tail of the quantile function, by a rational function of a root of a logarithm."""
    p = f.uniform(64, 1, low=1e-6, high=0.02)
    q = (p.log() * -2.0).sqrt()
    top = ((q * -0.00778489 - 0.32239646) * q - 2.40075828) * q - 2.54973254
    bottom = ((q * 0.0077847 + 0.3224671) * q + 2.4451341) * q + 3.7544087
    return (top * q + 4.37466414) / (bottom * q + 1.0)


def truncated_draw(f: Formula) -> Tensor:
    a = f.uniform(64, 1, low=1.0, high=3.0)
    low = ((a * 0.70710678).erf() + 1.0) * 0.5
    return (low + f.uniform(64, 1) * (1.0 - low)) * 2.0 - 1.0


def langevin(f: Formula) -> Tensor:
    x, step = f.normal(32, 8, scale=5.0), f.number(1e-5, 1e-3)
    return ((x - x * step) + f.normal(32, 8) * (2.0 * step) ** 0.5) - x


def hamiltonian_error(f: Formula) -> Tensor:
    q, p, h = f.normal(32, 8), f.normal(32, 8), 0.5
    before = (q * q + p * p).sum() * 0.5
    p = p - q * (h / 2)
    q = q + p * h
    p = p - q * (h / 2)
    return (q * q + p * p).sum() * 0.5 - before


def shares_of_temperature(f: Formula) -> Tensor:
    return (dense(f, 16, 50) / f.number(0.005, 0.1)).softmax()


# --- embeddings ---


def angular_margin(f: Formula) -> Tensor:
    x = f.normal(32, 64)
    c = cosine(x, near(f, x, f.number(0.05, 0.5))).clip(-1.0 + 1e-7, 1.0 - 1e-7)
    return (c.acos() + 0.5).cos() * 64.0


def margin_by_sines(f: Formula) -> Tensor:
    x = f.normal(32, 64)
    c = cosine(x, near(f, x, 0.1)).clip(-1.0, 1.0)
    return (c * 0.87758256 - (1.0 - c * c).relu().sqrt() * 0.47942554) * 64.0


def circle(f: Formula) -> Tensor:
    s = f.uniform(32, 16, low=-0.2, high=0.9)
    return ((s + 0.25).relu() * (s - 0.25) * f.number(32, 256)).reduced("LogSumExp", -1).softplus()


def uniformity(f: Formula) -> Tensor:
    x = unit(dense(f, 32, 16))
    d = x.reshape(32, 1, 16) - x.reshape(1, 32, 16)
    return (squared_length(d) * -2.0).exp().mean(None).log()


def alignment(f: Formula) -> Tensor:
    x = f.normal(32, 64)
    return squared_length(unit(x) - unit(near(f, x, 0.02)))


def student_neighbours(f: Formula) -> Tensor:
    """t-SNE: shares of 1 / (1 + d^2), by products."""
    y = f.normal(48, 2, scale=f.number(0.01, 30))
    n = squared_length(y)
    w = 1.0 / ((n + n.transpose() - (y @ y.transpose()) * 2.0) + 1.0)
    w = w * f.constant(1.0 - np.eye(48))
    return w / w.sum(None) * 1000.0


def multi_similarity(f: Formula) -> Tensor:
    s = f.uniform(32, 16, low=-0.2, high=0.95)
    return (((s - 0.5) * 50.0).exp().sum() + 1.0).log() / 50.0


def center_loss(f: Formula) -> Tensor:
    x = f.normal(32, 16, mean=f.number(1, 20))
    return squared_length(x - near(f, x, 0.02)) * 0.5


# --- optimizers and norms ---


def gradient(f: Formula, scale: float) -> Tensor:
    return (f.normal(32, 16).transpose() @ f.normal(32, 16)) * scale


def centralized_gradient(f: Formula) -> Tensor:
    g = gradient(f, 1.0) + f.number(1, 300)
    return g - g.mean()


def rectified_term(f: Formula) -> Tensor:
    """RAdam: the length of an average, less what is missing."""
    t = f.input(f.draw.integers(10, 10000, (8, 1)).astype(np.float32))
    power = f.constant(np.float32(0.999)) ** t
    return 1999.0 - t * power * 2.0 / (1.0 - power)


def sharpness_aware(f: Formula) -> Tensor:
    g = gradient(f, f.number(1e-4, 10))
    return g * (0.05 / ((g * g).sum(None).sqrt() + 1e-12))


def sign_of_interpolation(f: Formula) -> Tensor:
    """Lion on a state in FP32."""
    m, g = f.normal(16, 16, scale=1e-3), f.normal(16, 16, scale=1e-3)
    return (m * 0.9 + g * 0.1).sign()


def clipped_by_curvature(f: Formula) -> Tensor:
    m, h = gradient(f, 1e-4), f.uniform(16, 16, low=1e-9, high=1e-3)
    return (m / (h * 0.05 + 1e-12)).clip(-1.0, 1.0)


def difference_of_gradients(f: Formula) -> Tensor:
    """Adan and BFGS: what a gradient changes from step to step."""
    g = f.normal(16, 16)
    y, s = near(f, g, 0.02) - g, f.normal(16, 16, scale=0.01)
    return y * 0.92 + g * 0.0 + s


def batch_renormalized(f: Formula) -> Tensor:
    x = f.normal(64, 16, mean=f.number(1, 100))
    mean = x.mean(0)
    d = x - mean
    deviation = ((d * d).mean(0) + 1e-5).sqrt()
    running = near(f, f.input(f.formula_value(mean)), 0.05)
    return d / deviation * (deviation / 1.1).clip(0.33, 3.0) + ((mean - running) / 1.1).clip(-5.0, 5.0)


def standardized_weight(f: Formula) -> Tensor:
    w = f.normal(16, 144, scale=0.05, mean=f.number(0.01, 3))
    d = w - w.mean()
    return d / ((d * d).mean() + 1e-10).sqrt()


def filter_response(f: Formula) -> Tensor:
    x = dense(f, 16, 64, f.number(1e-3, 300))
    return x / ((x * x).mean() + 1e-6).sqrt()


def merged_statistics(f: Formula) -> Tensor:
    """SyncBatchNorm: sums of squares and sums of parts."""
    parts = [f.normal(32, 8, mean=f.number(1, 30)) for _ in range(2)]
    total = (parts[0].sum(0) + parts[1].sum(0)) / 64.0
    squares = ((parts[0] * parts[0]).sum(0) + (parts[1] * parts[1]).sum(0)) / 64.0
    return (parts[0] - total) / (squares - total * total + 1e-5).sqrt()


def scaled_by_quantile(f: Formula) -> Tensor:
    """Dynamic thresholding of an image."""
    x = dense(f, 8, 100, f.number(0.5, 100))
    s = x.abs().sorted().part(4, 5).max(f.constant(np.float32(1.0)))
    return x.min(s).max(-s) / s
