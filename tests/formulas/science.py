"""Samplers, schedules, geometry, audio, physics and finance."""

import numpy as np

from tests.formulas.formula import Formula, Tensor, concat


def cumulative_alphas(f: Formula) -> Tensor:
    """A diffusion schedule: a product of a thousand numbers next to 1."""
    beta = np.linspace(1e-4, 0.02, 1000)
    a = f.constant(np.log1p(-beta)).cumsum(0).exp().take(f.below(1000, 16)).reshape(16, 1)
    x = f.normal(16, 64) @ f.weight(64, 64)
    return a.sqrt() * x + (1.0 - a).sqrt() * f.normal(16, 64)


def signal_to_noise(f: Formula) -> Tensor:
    a = f.uniform(16, 1, low=0.0001, high=0.9999)
    return (a / (1.0 - a)).log() * (f.normal(16, 64) @ f.weight(64, 64))


def predicted_noise(f: Formula) -> Tensor:
    a = f.uniform(16, 1, low=0.9, high=0.9999)
    x = f.normal(16, 64)
    return (x - a.sqrt() * (x @ f.weight(64, 64))) / (1.0 - a).sqrt()


def timestep_embedding(f: Formula) -> Tensor:
    t = f.below(1000, 16, 1).real()
    angle = t * f.constant(np.exp(-np.log(10000) * np.arange(32) / 32).reshape(1, 32))
    return concat(angle.cos(), angle.sin()) @ f.weight(64, 32)


def fourier_features(f: Formula) -> Tensor:
    angle = (f.uniform(64, 3, low=-1) @ f.weight(3, 32)) * f.number(6, 300)
    return concat(angle.sin(), angle.cos()) @ f.weight(64, 16)


def gumbel(f: Formula) -> Tensor:
    u = f.uniform(16, 64, low=1e-7, high=1.0 - 1e-6)
    noise = -((-((u + 1e-20).log()) + 1e-20).log())
    return ((f.normal(16, 32) @ f.weight(32, 64) + noise) / f.number(0.1, 1.0)).softmax()


def inverse_cdf(f: Formula) -> Tensor:
    return -((1.0 - f.uniform(16, 64, high=0.99999)).log()) @ f.weight(64, 16)


def box_muller(f: Formula) -> Tensor:
    u, v = f.uniform(16, 64, low=1e-6), f.uniform(16, 64)
    return ((u.log() * -2.0).sqrt() * (v * 6.2831853).cos()) @ f.weight(64, 16)


def logit_normal(f: Formula) -> Tensor:
    p = (f.normal(16, 32) @ f.weight(32, 32) * 4.0).sigmoid().clip(1e-4, 1 - 1e-4)
    return (p / (1.0 - p)).log() @ f.weight(32, 8)


def atanh_of_tanh(f: Formula) -> Tensor:
    """The log probability of a squashed action."""
    action = ((f.normal(16, 32) @ f.weight(32, 32)) * 2.0).tanh().clip(-0.9999, 0.9999)
    return action.atanh() - (1.0 - action * action + 1e-6).log()


def angle_between(f: Formula) -> Tensor:
    a = f.normal(64, 3)
    b = a + f.normal(64, 3, scale=0.02)
    a, b = (v / (v * v).sum().sqrt() for v in (a, b))
    return (a * b).sum().clip(-1 + 1e-4, 1 - 1e-4).acos()


def haversine(f: Formula) -> Tensor:
    a = f.uniform(64, 2, low=-1.0)
    b = a + f.normal(64, 2, scale=1e-3)
    h = ((a - b) * 0.5).sin() ** 2.0
    return h.sum().sqrt() * 12742.0


def box_areas(f: Formula) -> Tensor:
    corner = f.uniform(64, 2, high=300.0)
    size = f.uniform(64, 2, low=1.0, high=f.number(10, 600))
    return ((corner + size) - corner).product() @ f.weight(1, 8)


def overlap(f: Formula) -> Tensor:
    a = f.uniform(64, 2, high=400.0)
    b = a + f.normal(64, 2, scale=20.0)
    sizes = [f.uniform(64, 2, low=20.0, high=400.0) for _ in range(2)]
    inner = ((a + sizes[0]).min(b + sizes[1]) - a.max(b)).relu().product()
    return inner / (sizes[0].product() + sizes[1].product() - inner)


def squared_distances(f: Formula) -> Tensor:
    x = f.normal(f.size(16, 64), 16, mean=f.number(0.1, 30))
    square = (x * x).sum()
    return (square + square.transpose() - (x @ x.transpose()) * 2.0).relu().sqrt()


def distance_by_differences(f: Formula) -> Tensor:
    x = f.normal(32, 1, 16, mean=f.number(0.1, 100))
    return ((x - x.reshape(1, 32, 16)) ** 2.0).sum().sqrt()


def radial_basis(f: Formula) -> Tensor:
    d = (f.uniform(64, 1, high=10.0) - f.constant(np.linspace(0, 10, 64).reshape(1, 64))) ** 2.0
    return (d * -f.number(1, 100)).exp() @ f.weight(64, 16)


def coulomb(f: Formula) -> Tensor:
    distance = f.uniform(64, 64, low=f.number(1e-4, 0.1), high=10.0)
    return (1.0 / distance) @ f.weight(64, 16)


def lennard_jones(f: Formula) -> Tensor:
    ratio = f.uniform(64, 64, low=0.3, high=2.5) ** 6.0
    return (1.0 / (ratio * ratio) - 1.0 / ratio).sum()


def kinetic_energy(f: Formula) -> Tensor:
    return (f.normal(64, 3, scale=f.number(1, 500)) ** 2.0).sum() * f.uniform(64, 1, high=50.0)


def energy_difference(f: Formula) -> Tensor:
    x = f.normal(16, 1024, mean=f.number(1, 20))
    return (x + f.normal(16, 1024, scale=0.01)).sum() - x.sum()


def finite_difference(f: Formula) -> Tensor:
    x, h = f.normal(16, 64), f.number(1e-4, 1e-2)
    w = f.weight(64, 64)
    return (((x + h) @ w).tanh() - (x @ w).tanh()) / h


def second_difference(f: Formula) -> Tensor:
    x = f.input(np.sin(np.linspace(0, 3, 256)).reshape(1, 256))
    return (x.part(2, 256) - x.part(1, 255) * 2.0 + x.part(0, 254)) * 1e4


def stress_strain(f: Formula) -> Tensor:
    return (f.normal(32, 3, scale=1e-4) @ f.weight(3, 3)) * f.number(1e5, 1e9)


def compound_interest(f: Formula) -> Tensor:
    return (f.uniform(16, 1, high=0.01) + 1.0) ** float(f.size(12, 120, 360)) @ f.weight(1, 8)


def black_scholes(f: Formula) -> Tensor:
    spot, strike = f.uniform(64, 1, low=50.0, high=200.0), 100.0
    d = ((spot / strike).log() + 0.01) / 0.2
    cdf = ((d * 0.70710678).erf() + 1.0) * 0.5
    return spot * cdf - ((d - 0.2) * 0.70710678).erf() * 50.0


def sharpe(f: Formula) -> Tensor:
    x = f.normal(8, 252, scale=1e-3, mean=2e-4)
    d = x - x.mean()
    return x.mean() / ((d * d).mean() + 1e-12).sqrt()


def discounted_returns(f: Formula) -> Tensor:
    n = f.size(64, 512)
    power = f.constant(0.99 ** np.arange(n).reshape(1, n))
    return (f.normal(8, n) * power).cumsum() / power


def audio_samples(f: Formula) -> Tensor:
    return ((f.uniform(16, 64, low=-1.0) * 32768.0) @ f.weight(64, 64)) / 32768.0


def mu_law(f: Formula) -> Tensor:
    x = f.uniform(16, 256, low=-1.0)
    y = x.sign() * ((x.abs() * 255.0 + 1.0).log()) * float(1 / np.log(256))
    return ((y + 1.0) * 127.5 + 0.5).floor().integer()


def log_mel(f: Formula) -> Tensor:
    power = (f.normal(32, 64, scale=f.number(1e-4, 0.1)) @ f.weight(64, 64)) ** 2.0
    return (power @ f.constant(np.abs(f.draw.normal(size=(64, 16)))) + 1e-10).log()


def decibels(f: Formula) -> Tensor:
    x = f.normal(8, 4000, scale=f.number(1e-4, 1.0))
    return ((x * x).mean() + 1e-10).log() * 4.3429448


def pre_emphasis(f: Formula) -> Tensor:
    x = f.input(np.sin(np.linspace(0, 20, 1024)).reshape(1, 1024))
    return x.part(1, 1024) - x.part(0, 1023) * 0.97


def oscillator(f: Formula) -> Tensor:
    """The phase is a sum over all samples."""
    hertz = f.uniform(2, f.size(256, 4000), low=80.0, high=900.0)
    return (hertz * (6.2831853 / 16000.0)).cumsum().sin()


def spectral_convergence(f: Formula) -> Tensor:
    x = (f.normal(16, 256) @ f.weight(256, 256)) * 30.0
    y = x + f.normal(16, 256, scale=0.1)
    return ((x - y) ** 2.0).sum(None).sqrt() / ((x**2.0).sum(None)).sqrt()


def grid_index(f: Formula) -> Tensor:
    size = f.size(64, 512, 2000)
    position = ((f.uniform(256, low=-1.0, high=0.9999) + 1.0) * (size / 2)).floor()
    return f.weight(size, 8).take(position.clip(0, size - 1).integer())


def bilinear_weight(f: Formula) -> Tensor:
    x = f.uniform(256, 1, high=f.number(10, 1000))
    share = x - x.floor()
    return share * f.normal(256, 8) + (1.0 - share) * f.normal(256, 8)


def quantized(f: Formula) -> Tensor:
    x = f.normal(16, 64) @ f.weight(64, 64)
    scale = x.abs().most() / 127.0
    return (x / scale).round().clip(-128, 127) * scale


def quantized_input(f: Formula) -> Tensor:
    x = f.normal(16, 64)
    return ((x / f.number(0.01, 0.1)).round().clip(-128, 127) * 0.05) @ f.weight(64, 16)


def date_features(f: Formula) -> Tensor:
    day = f.input(f.draw.integers(0, 20000, (64, 1))).real()
    return (day * (6.2831853 / 365.25)).sin() @ f.weight(1, 8)


def hash_features(f: Formula) -> Tensor:
    key = f.input(f.draw.integers(0, 100000, (64,))).real()
    bucket = key - (key / 1000.0).floor() * 1000.0
    return f.weight(1000, 8).take(bucket.integer())


def standardized(f: Formula) -> Tensor:
    mean, spread = f.number(10, 5000), f.number(0.1, 10)
    return ((f.normal(32, 16, mean=mean, scale=spread) - mean) / spread) @ f.weight(16, 16)


def temperature_in_kelvin(f: Formula) -> Tensor:
    return ((f.normal(32, 16, mean=290.0) - 273.15) @ f.weight(16, 16)) * 0.1


def boltzmann(f: Formula) -> Tensor:
    energy = (f.normal(16, 32) @ f.weight(32, 64)) * f.number(1, 40)
    e = (-(energy - energy.least())).exp()
    return e / e.sum()


def arrhenius(f: Formula) -> Tensor:
    return (-5000.0 / f.uniform(64, 1, low=280.0, high=400.0)).exp() * 1e7


def softmin_path(f: Formula) -> Tensor:
    cost = (f.normal(16, 16) ** 2.0) * 3.0
    total = cost.part(0, 1)
    for i in range(1, 16):
        total = cost.part(i, i + 1) - ((-total).exp() + (-(total + 1.0)).exp()).log()
    return total


def sinkhorn(f: Formula) -> Tensor:
    kernel = (f.uniform(16, 16) * -f.number(5, 60)).exp()
    u = kernel.sum() * 0.0 + 1.0
    for _ in range(4):
        v = 1.0 / (kernel.transpose() @ u + 1e-12)
        u = 1.0 / (kernel @ v + 1e-12)
    return u * kernel * v.transpose()


def adam_step(f: Formula) -> Tensor:
    g = (f.normal(32, 16).transpose() @ f.normal(32, 16)) * 1e-3
    m, v = f.normal(16, 16, scale=1e-3), f.uniform(16, 16, high=1e-6)
    m, v = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
    return f.normal(16, 16) - m / (v.sqrt() + 1e-8) * 1e-3


def clipped_norm(f: Formula) -> Tensor:
    g = (f.normal(32, 64).transpose() @ f.normal(32, 64)) * f.number(0.01, 50)
    norm = (g * g).sum(None).sqrt()
    return g * (1.0 / (norm + 1e-6)).min(f.constant(np.float32(1.0)))


def exponential_average(f: Formula) -> Tensor:
    return f.normal(64, 16) * 0.9999 + (f.normal(64, 16) @ f.weight(16, 16)) * 0.0001


def rounding_residue(f: Formula) -> Tensor:
    x = f.normal(16, 64)
    low = f.node("Cast", x, compute=lambda v: v.astype(np.float16).astype(np.float64), to=10)
    wide = f.node("Cast", low, compute=lambda v: v, to=1)
    return (x - wide) @ f.weight(64, 16)


def ordered_positions(f: Formula) -> Tensor:
    n = f.size(300, 3000)
    return f.input(np.ones((1, n), np.float32)).cumsum().integer()


def polynomial(f: Formula) -> Tensor:
    x, result = f.uniform(64, 16, low=-3.0, high=3.0), f.constant(np.float32(1.0))
    for c in f.draw.normal(size=8):
        result = result * x + float(c)
    return result @ f.weight(16, 8)


def legendre(f: Formula) -> Tensor:
    x = f.uniform(64, 16, low=-1.0)
    a, b = x * 0.0 + 1.0, x
    for n in range(2, 9):
        a, b = b, (x * b * (2 * n - 1.0) - a * (n - 1.0)) / float(n)
    return b @ f.weight(16, 8)


def determinant(f: Formula) -> Tensor:
    x = f.normal(64, 4, mean=f.number(1, 100))
    return x.part(0, 1) * x.part(3, 4) - x.part(1, 2) * x.part(2, 3)


def cross_product(f: Formula) -> Tensor:
    a = f.normal(64, 3, mean=f.number(0.1, 10))
    b = a + f.normal(64, 3, scale=0.05)
    return a.part(1, 2) * b.part(2, 3) - a.part(2, 3) * b.part(1, 2)


def quaternion_norm(f: Formula) -> Tensor:
    q = f.normal(64, 4, scale=f.number(1e-3, 300))
    return q / (q * q).sum().sqrt()


def perspective(f: Formula) -> Tensor:
    point = f.uniform(64, 3, low=0.01, high=10.0)
    return point.part(0, 2) / point.part(2, 3) * f.number(100, 1500)


def volume_rendering(f: Formula) -> Tensor:
    density = (f.normal(16, 64) @ f.weight(64, 64)).softplus() * f.number(0.1, 30)
    alpha = 1.0 - (-density * 0.03).exp()
    through = ((1.0 - alpha + 1e-10).log().cumsum()).exp()
    return (alpha * through) @ f.uniform(64, 3)


def hyperbolic_distance(f: Formula) -> Tensor:
    x = f.uniform(64, 2, low=-0.7, high=0.7)
    y = x + f.normal(64, 2, scale=0.005)
    square = ((x - y) ** 2.0).sum() * 2.0
    z = square / ((1.0 - (x * x).sum()) * (1.0 - (y * y).sum())) + 1.0
    return (z + (z * z - 1.0 + 1e-7).sqrt()).log()


def von_mises(f: Formula) -> Tensor:
    return ((f.uniform(64, 8, high=6.28).cos()) * f.number(1, 30)).exp() @ f.weight(8, 8)


def welford_variance(f: Formula) -> Tensor:
    x = f.normal(8, f.size(256, 4096), mean=f.number(1, 300))
    return ((x - x.mean()) ** 2.0).sum() / float(x.shape[1] - 1)


def log_sum_exp(f: Formula) -> Tensor:
    return ((f.normal(16, 32) @ f.weight(32, 64)) * f.number(1, 12)).exp().sum().log()


def log1mexp(f: Formula) -> Tensor:
    return (1.0 - (-f.uniform(64, 16, low=1e-4, high=5.0)).exp()).log() @ f.weight(16, 8)


def expm1(f: Formula) -> Tensor:
    return ((f.normal(64, 16, scale=f.number(1e-4, 0.1)).exp() - 1.0) * 100.0) @ f.weight(16, 8)


def sinc(f: Formula) -> Tensor:
    x = f.normal(64, 16, scale=0.5) * 3.1415927
    return (x.sin() / (x + 1e-8)) @ f.weight(16, 8)


def logistic_map(f: Formula) -> Tensor:
    x = f.uniform(64, 16, low=0.1, high=0.9)
    for _ in range(4):
        x = x * (1.0 - x) * 2.9
    return x @ f.weight(16, 8)
