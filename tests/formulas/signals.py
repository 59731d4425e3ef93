"""Positions, norms, physics, signals, images and counts."""

import numpy as np

from tests.formulas.formula import Formula, Tensor, concat
from tests.formulas.geometry import column, near

# --- positions ---


def rotary_at_long_context(f: Formula) -> Tensor:
    start = f.size(0, 30000, 500000)
    position = f.input(start + np.arange(64).reshape(64, 1)).real()
    angle = position * f.constant((500000.0 ** (-np.arange(16) / 16)).reshape(1, 16))
    x = f.normal(64, 32) @ f.weight(32, 32)
    a, b = x.part(0, 16), x.part(16, 32)
    return concat(a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin())


def xpos(f: Formula) -> Tensor:
    n = f.size(512, 4096)
    power = (f.arange(n).reshape(n, 1) - n / 2) / 512.0
    scale = f.constant(((np.arange(0, 32, 2) / 32 + 0.4) / 1.4).reshape(1, 16)) ** power
    return (f.normal(n, 16) * scale) @ f.weight(16, 8)


def alibi_slopes(f: Formula) -> Tensor:
    n = f.size(512, 4096)
    slope = f.constant(2.0 ** -np.arange(1, 9).reshape(8, 1))
    scores = f.normal(8, 32) @ f.weight(32, n)
    return (scores + slope * (f.arange(n).reshape(1, n) - float(n - 1))).softmax()


def sinusoids(f: Formula) -> Tensor:
    position = f.arange(f.size(128, 5000)).reshape(-1, 1)
    rate = f.constant(np.exp(-np.log(10000) * np.arange(16) / 16).reshape(1, 16))
    return f.normal(1, 32) * 0.02 + concat((position * rate).sin(), (position * rate).cos())


def relative_by_logarithm(f: Formula) -> Tensor:
    """Swin v2: the coordinates of a window, on a logarithmic scale."""
    d = f.constant(np.arange(-15, 16).reshape(31, 1) / 15.0) * 8.0
    return (d.sign() * (d.abs() + 1.0).log() / float(np.log(8))) @ f.weight(1, 16) @ f.weight(16, 4)


# --- norms ---


def rms_of_large(f: Formula) -> Tensor:
    x = (f.normal(16, 64) @ f.weight(64, 64)) * f.number(100, 5000)
    return (x * (1.0 / ((x**2.0).mean() + 1e-5).sqrt())) @ f.weight(64, 64)


def norm_of_residual(f: Formula) -> Tensor:
    """A stream that grew, with one massive channel."""
    scale = np.ones((1, 64))
    scale[0, 3] = f.number(100, 3000)
    x = f.normal(16, 64) * f.constant(scale)
    d = x - x.mean()
    return d / ((d * d).mean() + 1e-6).sqrt()


def deep_norm(f: Formula) -> Tensor:
    x = f.normal(16, 64)
    for _ in range(4):
        x = x * 2.4 + (x @ f.weight(64, 64)) * 0.1
        x = (x - x.mean()) / (((x - x.mean()) ** 2.0).mean() + 1e-5).sqrt()
    return x


def global_response(f: Formula) -> Tensor:
    x = f.normal(4, 196, 32) * f.number(0.01, 30)
    g = (x * x).sum(1).sqrt()
    return x * (g / (g.mean() + 1e-6)) + x


# --- physics ---


def burgers_residual(f: Formula) -> Tensor:
    u = f.input(np.sin(np.linspace(0, 6.28, 128)).reshape(1, 128))
    middle, right, left = u.part(1, 127), u.part(2, 128), u.part(0, 126)
    first, second = (right - left) * 10.0, (right - middle * 2.0 + left) * 400.0
    return middle * first - second * 0.01


def laplacian_by_sums(f: Formula) -> Tensor:
    grid = np.sin(np.linspace(0, 3, 32)).reshape(32, 1) * np.cos(np.linspace(0, 3, 32)).reshape(1, 32)
    u = f.input(grid + 2.0)
    sides = u.part(0, 30, 0).part(1, 31) + u.part(2, 32, 0).part(1, 31)
    sides = sides + u.part(1, 31, 0).part(0, 30) + u.part(1, 31, 0).part(2, 32)
    return sides - u.part(1, 31, 0).part(1, 31) * 4.0


def laplacian_by_product(f: Formula) -> Tensor:
    """A stencil as a matrix."""
    n = 64
    stencil = np.eye(n, k=1) + np.eye(n, k=-1) - 2 * np.eye(n)
    return f.input(np.sin(np.linspace(0, 3, n)).reshape(1, n) + 5.0) @ f.constant(stencil[:, 1:-1])


def runge_kutta(f: Formula) -> Tensor:
    """Change of an oscillator in a small step."""
    x, h = f.normal(32, 1, mean=3.0), 0.01
    a = x * -1.0
    b = (x + a * (h / 2)) * -1.0
    return (x + (a + b * 2.0) * (h / 3)) - x


def planck(f: Formula) -> Tensor:
    x = f.uniform(64, 1, low=0.01, high=12.0)
    return x**3.0 / (x.exp() - 1.0)


def gravity(f: Formula) -> Tensor:
    mass, distance = f.uniform(64, 1, low=1e3, high=1e6), f.uniform(64, 1, low=1.0, high=100.0)
    return mass * 6.674e-11 / (distance * distance) * 1e9


def ideal_gas(f: Formula) -> Tensor:
    pressure = f.uniform(64, 1, low=9e4, high=1.1e5)
    return pressure * 0.0224 / (8.314 * f.uniform(64, 1, low=270.0, high=320.0))


def debye_hueckel(f: Formula) -> Tensor:
    charge = f.uniform(64, 1, low=-1.0) * 1.602e-19
    return (charge * charge) * 8.9875e9 / 1e-28


def relativistic_energy(f: Formula) -> Tensor:
    v = f.uniform(64, 1, low=0.005, high=0.9)
    return 1.0 / (1.0 - v * v).sqrt() - 1.0


def harmonic_bond(f: Formula) -> Tensor:
    a = f.uniform(64, 3, high=50.0)
    b = near(f, a, 0.9)
    length = ((a - b) ** 2.0).sum().sqrt()
    return ((length - 1.09) ** 2.0) * 340.0


def wrapped_distance(f: Formula) -> Tensor:
    d = f.uniform(64, 3, low=-80.0, high=80.0)
    return d - (d / 20.0).round() * 20.0


def total_energy(f: Formula) -> Tensor:
    """A large kinetic and a large potential energy whose sum is small."""
    v = f.normal(64, 256)
    kinetic = (v * v).sum() * 0.5
    return kinetic + f.input(-f.formula_value(kinetic) + f.draw.standard_normal((64, 1)))


def logistic_growth(f: Formula) -> Tensor:
    t = f.uniform(64, 1, high=100.0)
    return 1000.0 / ((t * -0.2).exp() * 99.0 + 1.0)


# --- signals and images ---


def real_spectrum(f: Formula) -> Tensor:
    """A Fourier transform as two products, its power in decibels."""
    n = f.size(64, 256)
    turn = 2 * np.pi * np.outer(np.arange(n), np.arange(n // 2)) / n
    x = f.input(np.sin(np.arange(n) * 0.3).reshape(1, n) + 1e-2 * f.draw.standard_normal((4, n)))
    re, im = x @ f.constant(np.cos(turn)), x @ f.constant(-np.sin(turn))
    return (re * re + im * im + 1e-8).log() * 4.3429448


def phase_of_spectrum(f: Formula) -> Tensor:
    re, im = f.normal(16, 64) @ f.weight(64, 64), f.normal(16, 64) @ f.weight(64, 64)
    return ((im / (re.abs() + 1e-6)).atan()) * re.sign()


def group_delay(f: Formula) -> Tensor:
    phase = f.uniform(4, 128, low=0.1, high=0.3).cumsum()
    return phase.part(1, 128) - phase.part(0, 127)


def spectral_flatness(f: Formula) -> Tensor:
    power = f.uniform(8, 257, low=1e-3) ** 4.0 + 1e-10
    return power.log().mean().exp() / power.mean()


def signal_to_distortion(f: Formula) -> Tensor:
    x = f.normal(4, 4000)
    y = near(f, x, f.number(0.01, 0.1))
    share = (x * y).sum() / ((x * x).sum() + 1e-8)
    target = share * x
    noise = y - target
    return ((target * target).sum() / ((noise * noise).sum() + 1e-8)).log() * 4.3429448


def beamforming(f: Formula) -> Tensor:
    x = f.normal(4, 1000, scale=f.number(1e-3, 1))
    c = (x @ x.transpose()) / 1000.0
    w = f.normal(4, 1)
    return (w.transpose() @ c @ w).log()


def resonator(f: Formula) -> Tensor:
    """A recursive filter with a pole near the circle."""
    y, before = f.constant(np.zeros((4, 1))), f.constant(np.zeros((4, 1)))
    x = f.normal(4, 24)
    for i in range(24):
        y, before = column(x, i) + y * 1.96 - before * 0.9801, y
    return y


def snr_in_decibels(f: Formula) -> Tensor:
    x = f.normal(4, 1000)
    y = near(f, x, 0.01)
    return ((x * x).sum() / ((x - y) ** 2.0).sum()).log() * 4.3429448


def similarity_of_images(f: Formula) -> Tensor:
    """SSIM over windows of 64 pixels of 0 to 255."""
    x = f.uniform(16, 64, low=100.0, high=140.0)
    y = near(f, x, 1.0)
    mx, my = x.mean(), y.mean()
    vx, vy = (x * x).mean() - mx * mx, (y * y).mean() - my * my
    cov = (x * y).mean() - mx * my
    top = (mx * my * 2.0 + 6.5025) * (cov * 2.0 + 58.5225)
    return top / ((mx * mx + my * my + 6.5025) * (vx + vy + 58.5225))


def total_variation(f: Formula) -> Tensor:
    n = 64
    image = f.input(np.cumsum(f.draw.normal(scale=0.3, size=(n, n)), -1) + 120.0)
    return (image.part(1, n) - image.part(0, n - 1)).abs().mean(None)


def peak_signal_to_noise(f: Formula) -> Tensor:
    x = f.uniform(4, 1024, high=255.0)
    y = near(f, x, f.number(0.5, 5))
    return (65025.0 / ((x - y) ** 2.0).mean()).log() * 4.3429448


def charbonnier(f: Formula) -> Tensor:
    x = f.uniform(16, 64)
    return (((x - near(f, x, 0.01)) ** 2.0) + 1e-6).sqrt()


def gamma_correction(f: Formula) -> Tensor:
    x = f.uniform(16, 64, low=1e-4)
    return ((x + 0.055) / 1.055) ** 2.4 @ f.weight(64, 3)


def luminance_in_lab(f: Formula) -> Tensor:
    y = f.uniform(16, 64, low=0.01)
    return (y ** (1.0 / 3.0)) * 116.0 - 16.0


def motion(f: Formula) -> Tensor:
    """A frame less the one before, in levels of 8 bits."""
    x = f.input(f.draw.integers(0, 256, (16, 64)).astype(np.float32))
    y = f.input(f.formula_value(x) + f.draw.integers(-2, 3, (16, 64)))
    return (x - y) @ f.weight(64, 8)


# --- counts and metrics ---


def f1(f: Formula) -> Tensor:
    n = f.size(1000, 9000)
    y, p = f.mask(1, n, share=0.3), f.mask(1, n, share=0.3)
    hit = (y * p).sum()
    return hit * 2.0 / (y.sum() + p.sum() + 1e-7)


def matthews(f: Formula) -> Tensor:
    a, b, c, d = (float(f.draw.integers(200, 3000)) for _ in range(4))
    hits, misses = f.input(np.array([[a, b]])), f.input(np.array([[c, d]]))
    tp, tn, fp, fn = column(hits, 0), column(hits, 1), column(misses, 0), column(misses, 1)
    return (tp * tn - fp * fn) / ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)).sqrt()


def kappa(f: Formula) -> Tensor:
    m = f.input(f.draw.integers(0, 50, (5, 5)).astype(np.float32) + np.eye(5) * 400)
    n = m.sum(None)
    observed = (m * f.constant(np.eye(5))).sum(None) / n
    expected = (m.sum(0) * m.sum(1).transpose()).sum(None) / (n * n)
    return (observed - expected) / (1.0 - expected)


def area_under_curve(f: Formula) -> Tensor:
    """Trapezoids over a running count of hits."""
    n = f.size(500, 5000)
    y = f.mask(1, n, share=0.5)
    hit = y.cumsum() / y.sum()
    return (hit * (1.0 - y)).sum() / (1.0 - y).sum()


def r_squared(f: Formula) -> Tensor:
    y = f.normal(8, 256, mean=f.number(1, 100))
    d = y - near(f, y, 0.1)
    return 1.0 - (d * d).sum() / ((y - y.mean()) ** 2.0).sum()


def discounted_gain(f: Formula) -> Tensor:
    n = f.size(100, 3000)
    gain = f.input(f.draw.integers(0, 5, (8, n)).astype(np.float32))
    return ((f.constant(np.float32(2.0)) ** gain - 1.0) / ((f.arange(n) + 2.0).log() * 1.442695)).sum()


def inverse_document_frequency(f: Formula) -> Tensor:
    count = f.input(f.draw.integers(1, 90000, (1, 64)).astype(np.float32))
    return f.normal(8, 64) * ((100001.0 - count + 0.5) / (count + 0.5) + 1.0).log()


def learned_thresholds(f: Formula) -> Tensor:
    x = f.normal(64, 32) @ f.weight(32, 8)
    return ((x > 0.0).real() * 1000.0).sum() + f.below(1000, 64, 1).real()


def running_mean(f: Formula) -> Tensor:
    """A mean over 100,000 values, corrected by one more."""
    mean = f.normal(1, 16, mean=f.number(1, 100))
    x = f.normal(1, 16, mean=f.number(1, 100))
    return mean + (x - mean) / 100001.0


def currency(f: Formula) -> Tensor:
    price = f.uniform(32, 4, low=100.0, high=30000.0)
    return price * 1.0825 - price
