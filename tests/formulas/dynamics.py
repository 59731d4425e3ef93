"""Fields, integrators, filters of states, sounds, and what physics takes from large constants."""

import numpy as np

from tests.formulas.formula import Formula, Tensor, concat
from tests.formulas.geometry import column, near


def shifted(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The samples before, here and after."""
    n = x.shape[-1]
    return x.part(0, n - 2), x.part(1, n - 1), x.part(2, n)


# --- fields ---


def upwind(f: Formula) -> Tensor:
    u = f.input(1.0 + 0.1 * np.sin(np.linspace(0, 6, 128))[None].repeat(4, 0)) * f.number(1, 50)
    before, here, after = shifted(u)
    return here.relu() * (here - before) + (-here).relu() * (here - after)


def wave_equation(f: Formula) -> Tensor:
    x = np.linspace(0, 6, 66)[None].repeat(4, 0)
    u, old = f.input(np.sin(x) + 3.0), f.input(np.sin(x - 0.01) + 3.0)
    before, here, after = shifted(u)
    return (here * 2.0 - shifted(old)[1] + (before - here * 2.0 + after) * 0.25) - here


def divergence_of_a_flow(f: Formula) -> Tensor:
    u, v = f.normal(1, 34, 34, mean=5.0), f.normal(1, 34, 34, mean=5.0)
    across = u.part(2, 34, 2).part(1, 33, 1) - u.part(0, 32, 2).part(1, 33, 1)
    along = v.part(2, 34, 1).part(1, 33, 2) - v.part(0, 32, 1).part(1, 33, 2)
    return (across + along) * 0.5


def vorticity_by_potential(f: Formula) -> Tensor:
    p = f.input(np.cos(np.linspace(0, 3, 130))[None].repeat(4, 0) * f.number(1, 100))
    before, here, after = shifted(p)
    return ((after - here) - (here - before)) * 400.0


def phase_of_a_state(f: Formula) -> Tensor:
    energy, t = f.uniform(1, 32, high=40.0), f.uniform(16, 1, high=f.number(1, 500))
    return (energy * t).cos() * f.normal(16, 32)


def fidelity_of_states(f: Formula) -> Tensor:
    a = f.normal(16, 32)
    b = near(f, a, 0.1)
    inner = (a * b).sum()
    return 1.0 - inner * inner / ((a * a).sum() * (b * b).sum())


def line_of_hydrogen(f: Formula) -> Tensor:
    n = f.input(f.draw.integers(20, 60, (32, 1)).astype(np.float32))
    return (1.0 / (n * n) - 1.0 / ((n + 1.0) * (n + 1.0))) * 3.289842e6


def doppler(f: Formula) -> Tensor:
    v = f.uniform(32, 1, low=-300.0, high=300.0)
    return (((v / 299792.458 + 1.0) / (1.0 - v / 299792.458)).sqrt() - 1.0) * 299792.458


def lorentz_factor(f: Formula) -> Tensor:
    v = f.uniform(32, 1, low=0.9, high=0.9999)
    return (1.0 - v * v) ** -0.5


def van_der_waals(f: Formula) -> Tensor:
    t, v = f.uniform(32, 1, low=280.0, high=320.0), f.uniform(32, 1, low=0.08, high=0.2)
    return t * 8.314 / (v - 0.043) - 365.0 / (v * v)


def free_energy(f: Formula) -> Tensor:
    e = f.uniform(8, 64, high=20.0) + f.number(1, 60)
    return ((e * -0.4).exp() * 1e6).sum().log() * -2.5


def specific_heat(f: Formula) -> Tensor:
    """A variance of energies over a temperature squared."""
    e = f.normal(8, 500, mean=-f.number(10, 500))
    return ((e * e).mean() - e.mean() * e.mean()) / 0.36


def tidal_force(f: Formula) -> Tensor:
    r = f.uniform(32, 1, low=8.0, high=12.0)
    return ((r - 0.1) ** -2.0 - (r + 0.1) ** -2.0) * 100.0


def escape_of_two_bodies(f: Formula) -> Tensor:
    """Kinetic less potential energy, all but equal."""
    r = f.uniform(32, 1, low=1.0, high=3.0)
    v = f.input((2.0 / f.formula_value(r)) ** 0.5 * 1.01)
    return v * v * 0.5 - 1.0 / r


# --- integrators and states ---


def slope(y: Tensor) -> Tensor:
    return y * -0.5 + y.sin()


def error_of_a_step(f: Formula) -> Tensor:
    """Two orders of the same step, one less the other."""
    y, h = f.normal(16, 8, scale=2.0), 0.02
    a = slope(y)
    b = slope(y + a * h)
    return ((y + (a + b) * (h / 2.0)) - (y + a * h)).abs().most()


def exponential_of_a_step(f: Formula) -> Tensor:
    """(exp(z) - 1) / z, which a step of a stiff equation is multiplied by."""
    z = f.uniform(32, 4, low=-0.2, high=-0.005)
    return ((z.exp() - 1.0) / z - 1.0) * f.normal(32, 4)


def richardson(f: Formula) -> Tensor:
    x = f.uniform(32, 1, low=0.5, high=2.0)

    def quotient(h: float) -> Tensor:
        return ((x + h).sin() - (x - h).sin()) / (2.0 * h)

    return (quotient(0.05) * 4.0 - quotient(0.1)) / 3.0


def steady_gain(f: Formula) -> Tensor:
    p = f.uniform(16, 1, low=0.5, high=2.0)
    for _ in range(8):
        p = p * 0.9801 + 0.01
        p = p - p * p / (p + 4.0)
    return p


def joseph_form(f: Formula) -> Tensor:
    p, r = f.uniform(16, 1, low=50.0, high=200.0), f.uniform(16, 1, low=0.001, high=0.1)
    k = p / (p + r)
    return (1.0 - k) * (1.0 - k) * p + k * k * r


def innovation(f: Formula) -> Tensor:
    state = f.input(f.number(10, 2000) + f.draw.standard_normal((32, 2)))
    measured = near(f, state, 0.1)
    return (measured - state) * 0.3 / 0.01


def complementary_filter(f: Formula) -> Tensor:
    rate, angle = f.normal(64, 4, scale=0.1), f.normal(64, 4)
    a = angle.part(0, 1, 0)
    for i in range(1, 64):
        a = (a + rate.part(i, i + 1, 0) * 0.01) * 0.98 + angle.part(i, i + 1, 0) * 0.02
    return a


def weights_of_particles(f: Formula) -> Tensor:
    measured = f.normal(1, 1, scale=3.0)
    d = (f.normal(1, 256, scale=3.0) - measured) / f.number(0.05, 1)
    w = (d * d * -0.5).exp()
    w = w / (w.sum() + 1e-30)
    return 1.0 / (w * w).sum()


def odometry(f: Formula) -> Tensor:
    """Where a robot is after three hundred steps along its heading."""
    turn = f.normal(4, 300, scale=0.05).cumsum()
    x, y = turn.cos().cumsum(), turn.sin().cumsum()
    n = x.shape[-1]
    return concat(x.part(n - 1, n), y.part(n - 1, n))


def inverse_kinematics(f: Formula) -> Tensor:
    """The elbow of an arm that is all but straight."""
    reach = f.uniform(32, 1, low=1.9, high=1.999)
    return ((reach * reach - 2.0) / 2.0).clip(-1.0, 1.0).acos()


def projected_on_constraint(f: Formula) -> Tensor:
    """SHAKE: a bond that is nearly as long as it should be."""
    d = f.normal(32, 3)
    d = d / (d * d).sum().sqrt() * 1.002
    return d * (((d * d).sum() - 1.0) * 0.25)


# --- sounds and signals ---


def teager_energy(f: Formula) -> Tensor:
    t = np.arange(130)[None] * f.number(0.02, 0.2)
    before, here, after = shifted(f.input(np.sin(t).repeat(4, 0) * f.number(0.1, 100)))
    return here * here - before * after


def pitch_by_differences(f: Formula) -> Tensor:
    """YIN: a difference function over its running mean."""
    x = f.input(np.sin(np.arange(256) * f.number(0.1, 0.6))[None].repeat(2, 0))
    lags = [((x.part(0, 192) - x.part(lag, lag + 192)) ** 2.0).sum() for lag in range(1, 33)]
    d = concat(*lags)
    return d * f.constant(np.arange(1, 33)).real() / (d.cumsum() + 1e-8)


def difference_function_by_products(f: Formula) -> Tensor:
    x = f.input(np.sin(np.arange(256) * 0.05)[None].repeat(2, 0) * f.number(1, 100))
    a, b = x.part(0, 192), x.part(8, 200)
    return (a * a).sum() + (b * b).sum() - (a * b).sum() * 2.0


def prediction_residual(f: Formula) -> Tensor:
    t = np.arange(258)[None] * 0.1
    before, here, after = shifted(f.input(np.cos(t).repeat(2, 0) * f.number(1, 30)))
    return after - here * (2.0 * float(np.cos(0.1))) + before + here * 1e-3


def cepstrum(f: Formula) -> Tensor:
    n = 64
    k = np.outer(np.arange(n), np.arange(n)) * 2 * np.pi / n
    x = f.normal(4, n, scale=f.number(0.001, 1))
    re, im = x @ f.constant(np.cos(k)), x @ f.constant(np.sin(k))
    return (re * re + im * im + 1e-12).log() @ f.constant(np.cos(k) / n)


def midi_of_frequency(f: Formula) -> Tensor:
    hertz = f.uniform(64, 1, low=30.0, high=4000.0)
    return ((hertz / 440.0).log() * 17.312340 + 69.0).round().integer()


def cents_off_pitch(f: Formula) -> Tensor:
    hertz = f.uniform(64, 1, low=430.0, high=450.0)
    return (hertz / 440.0).log() * 1731.2340


def chirp(f: Formula) -> Tensor:
    t = f.constant(np.linspace(0, 4, 512).reshape(1, 512))
    return (t * t * f.uniform(4, 1, low=10.0, high=200.0)).sin()


def phase_vocoder(f: Formula) -> Tensor:
    hop = f.constant(2 * np.pi * np.arange(64) * 256 / 1024).reshape(1, 64)
    now, old = f.uniform(8, 64, low=-3.1, high=3.1), f.uniform(8, 64, low=-3.1, high=3.1)
    d = now - old - hop
    return d - (d / 6.2831853).round() * 6.2831853


def envelope_in_decibels(f: Formula) -> Tensor:
    x = f.normal(4, 512, scale=f.number(1e-4, 1))
    e = (x * x).reshape(4, 16, 32).mean()
    return (e + 1e-10).log() * 4.3429448


def spectral_centroid(f: Formula) -> Tensor:
    hertz = f.constant(np.linspace(0, 8000, 128).reshape(1, 128))
    power = f.normal(8, 128, scale=f.number(0.01, 30))
    power = power * power
    centre = (power * hertz).sum() / power.sum()
    return ((hertz - centre) ** 2.0 * power).sum() / power.sum()


def wiener_gain(f: Formula) -> Tensor:
    noisy, noise = f.uniform(8, 64, low=1.0, high=1.2), f.uniform(8, 64, low=0.8, high=0.99)
    return ((noisy - noise) / noisy) * f.normal(8, 64)


def haar_details(f: Formula) -> Tensor:
    x = f.input(f.number(1, 100) + 0.05 * f.draw.standard_normal((4, 64, 2)))
    return (column(x, 0) - column(x, 1)) * 0.70710678


def comb_filter(f: Formula) -> Tensor:
    x = f.normal(1, 2000)
    return x.part(100, 2000) - x.part(0, 1900) * 0.999


def resampled(f: Formula) -> Tensor:
    """Between two samples, at 44.1 of 48 kilohertz."""
    n = f.size(500, 5000)
    x = f.input(np.sin(np.arange(n) * 0.05))
    place = f.arange(n - 10) * 0.91875
    below = place.floor()
    a, b = x.take(below.integer()), x.take((below + 1.0).integer())
    return a + (b - a) * (place - below)


def loudness(f: Formula) -> Tensor:
    x = f.normal(4, 4, 400, scale=f.number(0.001, 0.3))
    z = (x * x).mean()
    gate = (z > 1e-7).real()
    return ((z * gate).sum(1) / (gate.sum(1) + 1e-9) + 1e-12).log() * 4.3429448 - 0.691
