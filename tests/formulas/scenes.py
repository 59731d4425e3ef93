"""Cameras, rotations, boxes in space, rendering, maps, and time stamps, prices and counts as floats."""

import numpy as np

from tests.formulas.formula import Formula, Tensor, concat
from tests.formulas.geometry import column, near, unit


def columns(x: Tensor) -> list[Tensor]:
    return [column(x, i) for i in range(x.shape[-1])]


def cross(a: Tensor, b: Tensor) -> Tensor:
    (ax, ay, az), (bx, by, bz) = columns(a), columns(b)
    return concat(ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx)


def dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()


# --- rotations ---


def rotation_of_six(f: Formula) -> Tensor:
    """Two vectors made orthonormal, and their cross product."""
    a = f.normal(32, 3)
    b = near(f, a, f.number(0.03, 1))
    x = unit(a)
    y = unit(b - x * dot(x, b))
    return concat(x, y, cross(x, y))


def axis_of_rotation(f: Formula) -> Tensor:
    """From a matrix: differences of its corners over twice the sine."""
    angle = f.uniform(32, 1, low=0.02, high=3.0)
    z = angle.sin()
    trace = angle.cos() * 2.0 + 1.0
    sine = (1.0 - ((trace - 1.0) * 0.5) ** 2.0).sqrt()
    return (z - (-z)) / (sine * 2.0)


def quaternion_of_matrix(f: Formula) -> Tensor:
    angle = f.uniform(32, 1, low=0.0, high=3.1)
    return ((angle.cos() * 2.0 + 1.0) + 1.0).sqrt() * 0.5


def slerp(f: Formula) -> Tensor:
    a = f.normal(32, 4)
    b = near(f, a, f.number(0.05, 1))
    a, b = unit(a), unit(b)
    angle = dot(a, b).clip(-0.999999, 0.999999).acos()
    t = f.uniform(32, 1)
    return a * (((1.0 - t) * angle).sin() / angle.sin()) + b * ((t * angle).sin() / angle.sin())


def spherical_harmonics(f: Formula) -> Tensor:
    x, y, z = columns(unit(f.normal(64, 3)))
    terms = [x * y, y * z, z * z * 3.0 - 1.0, x * z, x * x - y * y, z * (z * z * 5.0 - 3.0)]
    return concat(*terms, x * (z * z * 5.0 - 1.0)) @ f.weight(7, 3)


def twist(f: Formula) -> Tensor:
    """The left Jacobian of a small rotation: (t - sin t) / t**3."""
    v = f.normal(32, 3, scale=f.number(0.1, 1))
    t = ((v * v).sum() + 1e-6).sqrt()
    return (t - t.sin()) / (t**3.0)


# --- cameras and rendering ---


def splatted_covariance(f: Formula) -> Tensor:
    """Gaussian splatting: the inverse of a projected covariance."""
    x, y, z = f.normal(64, 1), f.normal(64, 1), f.uniform(64, 1, low=0.3, high=20.0)
    focal, scale = f.number(300, 1500), f.uniform(64, 1, low=0.002, high=0.1)
    a = (focal * scale / z) ** 2.0 * (1.0 + (x / z) ** 2.0) + 0.3
    c = (focal * scale / z) ** 2.0 * (1.0 + (y / z) ** 2.0) + 0.3
    b = (focal * scale / z) ** 2.0 * (x * y / (z * z))
    return a / (a * c - b * b)


def transmittance(f: Formula) -> Tensor:
    """NeRF: products of what each sample lets through, one after another."""
    alpha = (f.normal(16, 48) @ f.weight(48, 48) - 2.0).sigmoid()
    through, colour = f.constant(np.ones((16, 1))), f.constant(np.zeros((16, 1)))
    for i in range(48):
        a = column(alpha, i)
        colour, through = colour + a * through * f.uniform(16, 1), through * (1.0 - a + 1e-10)
    return concat(colour, through)


def disparity_weights(f: Formula) -> Tensor:
    """Samples even in one over the depth, and the distances between them."""
    n = f.size(32, 128)
    s = f.constant(np.linspace(0, 1, n).reshape(1, n))
    near_, far = f.uniform(8, 1, low=0.05, high=0.5), f.uniform(8, 1, low=10.0, high=1000.0)
    depth = 1.0 / ((1.0 - s) / near_ + s / far)
    return depth.part(1, n) - depth.part(0, n - 1)


def distortion(f: Formula) -> Tensor:
    """Mip-NeRF 360: weights times distances of midpoints."""
    t = f.input(np.sort(f.draw.uniform(2, 6, (8, 33)), -1))
    w = (f.normal(8, 32) @ f.weight(32, 32)).softmax()
    middle = (t.part(1, 33) + t.part(0, 32)) * 0.5
    apart = (middle.reshape(8, 32, 1) - middle.reshape(8, 1, 32)).abs()
    return (w.reshape(8, 32, 1) * w.reshape(8, 1, 32) * apart).sum().sum(1)


def lens(f: Formula) -> Tensor:
    x = f.uniform(64, 2, high=1920.0) / 1000.0 - 0.96
    r = (x * x).sum()
    return x * (1.0 + r * -0.28 + r * r * 0.07 + r * r * r * 0.002) * 1000.0 + 960.0


def homography(f: Formula) -> Tensor:
    p = f.uniform(64, 2, high=1000.0)
    x, y = columns(p)
    return (x * 1.02 + y * 0.01 - 30.0) / (x * 1e-4 - y * 2e-4 + 1.0)


def sampson(f: Formula) -> Tensor:
    """The distance of matches from their epipolar lines."""
    x = concat(f.uniform(64, 2, low=-1.0), f.constant(np.ones((64, 1))))
    e = f.normal(3, 3)
    line = x @ e
    y = x @ f.constant(np.eye(3)) + f.normal(64, 3, scale=0.01)
    a = dot(y, line)
    return a * a / ((line.part(0, 2) ** 2.0).sum() + 1e-6)


def ray_and_sphere(f: Formula) -> Tensor:
    origin, towards = f.uniform(64, 3, low=-4.0, high=4.0), f.normal(64, 3)
    towards = unit(towards)
    b = dot(origin, towards)
    c = (origin * origin).sum() - f.number(0.5, 2)
    return ((b * b - c).max(f.constant(np.float32(0.0)))).sqrt() - b


def ray_and_triangle(f: Formula) -> Tensor:
    a = f.uniform(32, 3, high=50.0)
    e1, e2 = near(f, a, 1.0) - a, near(f, a, 1.0) - a
    towards = unit(f.normal(32, 3))
    p = cross(towards, e2)
    return dot(f.normal(32, 3), p) / (dot(e1, p).abs() + 0.3)


def rounded_box(f: Formula) -> Tensor:
    """A signed distance, and its smooth union with another."""
    p = f.uniform(64, 3, low=-2.0, high=2.0)
    q = p.abs() - f.constant([[0.8, 0.5, 0.3]])
    box = ((q.relu() ** 2.0).sum() + 1e-9).sqrt() + q.most().min(f.constant(np.float32(0.0))) - 0.1
    ball = (p * p).sum().sqrt() - 0.7
    k = f.number(8, 64)
    return ((box * -k).exp() + (ball * -k).exp()).log() * (-1.0 / k)


def cell_of_a_grid(f: Formula) -> Tensor:
    """Instant-NGP: where in its cell a point lies, at each resolution."""
    size = f.number(16, 2048)
    x = f.uniform(256, 3) * size
    share = x - x.floor()
    return share.part(0, 1) * share.part(1, 2) * (1.0 - share.part(2, 3)) * f.normal(256, 4)


def hashed_cell(f: Formula) -> Tensor:
    x = (f.uniform(256, 2) * f.number(16, 200)).floor()
    key = column(x, 0) + column(x, 1) * 37.0
    return f.weight(64, 4).take((key - (key / 64.0).floor() * 64.0).integer())


def flow_grid(f: Formula) -> Tensor:
    """Pixels moved by a flow, as shares of an image."""
    n = f.size(64, 512)
    return (f.arange(n).reshape(1, n) + f.normal(8, n)) / float(n - 1) * 2.0 - 1.0


# --- boxes ---


def overlap_in_space(f: Formula) -> Tensor:
    a = f.uniform(64, 3, high=80.0)
    b = near(f, a, 0.7)
    sizes = [f.uniform(64, 3, low=1.5, high=6.0) for _ in range(2)]
    low = (a - sizes[0] * 0.5).max(b - sizes[1] * 0.5)
    high = (a + sizes[0] * 0.5).min(b + sizes[1] * 0.5)
    inner = (high - low).relu().product()
    return inner / (sizes[0].product() + sizes[1].product() - inner)


def complete_overlap(f: Formula) -> Tensor:
    """CIoU: distance of centres over a diagonal, and angles of diagonals."""
    a = f.uniform(64, 2, high=640.0)
    b = near(f, a, 4.0)
    s, t = f.uniform(64, 2, low=10.0, high=300.0), f.uniform(64, 2, low=10.0, high=300.0)
    low, high = (a - s * 0.5).min(b - t * 0.5), (a + s * 0.5).max(b + t * 0.5)
    far = ((a - b) ** 2.0).sum() / (((high - low) ** 2.0).sum() + 1e-7)
    (sw, sh), (tw, th) = columns(s), columns(t)
    v = ((sw / sh).atan() - (tw / th).atan()) ** 2.0 * 0.405
    return far + v * v / (v + 0.3)


def gaussian_boxes(f: Formula) -> Tensor:
    """The Wasserstein distance of boxes as Gaussians, to a hundredth of a pixel."""
    a = f.uniform(64, 4, low=2.0, high=600.0)
    b = near(f, a, 0.5)
    return (-(((a - b) ** 2.0).sum() + 1e-7).sqrt() / 12.8).exp()


def thin_triangles(f: Formula) -> Tensor:
    """Heron's formula."""
    a, b = f.uniform(32, 1, low=1.0, high=40.0), f.uniform(32, 1, low=1.0, high=40.0)
    c = a + b - f.uniform(32, 1, low=0.05, high=0.5)
    s = (a + b + c) * 0.5
    return (s * (s - a) * (s - b) * (s - c)).sqrt()


def point_to_plane(f: Formula) -> Tensor:
    p, n = f.uniform(64, 3, high=f.number(1, 200)), unit(f.normal(64, 3))
    return dot(near(f, p, 0.02) - p, n)


# --- maps, time, money ---


def mercator_tile(f: Formula) -> Tensor:
    zoom = 2.0 ** f.size(4, 10, 15)
    latitude = f.uniform(64, 1, low=-1.2, high=1.2)
    y = ((latitude * 0.5 + 0.78539816).sin() / (latitude * 0.5 + 0.78539816).cos()).log()
    return ((1.0 - y / 3.14159265) * (0.5 * zoom)).floor().integer()


def earth_centred(f: Formula) -> Tensor:
    """Two places on the Earth in metres, less each other."""
    a = f.uniform(64, 1, low=-1.0, high=1.0)
    b = near(f, a, 1e-3)
    return a.cos() * 6378137.0 - b.cos() * 6378137.0


def bearing(f: Formula) -> Tensor:
    a, b = f.uniform(64, 2, low=-1.0), None
    b = near(f, a, 0.01)
    d = b - a
    return (column(d, 1) * column(a, 0).cos() / (column(d, 0).abs() + 1e-4)).atan()


def age_of_events(f: Formula) -> Tensor:
    now = 1.7e9
    t = f.input(now - 128.0 * f.draw.integers(1, 50000, (64, 1)))
    return ((f.constant(np.float32(now)) - t) / 3600.0 + 1.0).log()


def hour_of_day(f: Formula) -> Tensor:
    t = f.input(f.draw.integers(0, 86400 * 30, (64, 1)).astype(np.float32))
    return t.mod(86400.0) / 3600.0


def money(f: Formula) -> Tensor:
    """A bill less what was paid, in cents."""
    price = f.input(np.round(f.draw.uniform(1, 500, (16, 40)), 2))
    paid = f.input(np.round(f.formula_value(price).sum(-1, keepdims=True) + 0.37, 2))
    return paid - price.sum()


def log_returns(f: Formula) -> Tensor:
    p = f.input(f.number(1, 4000) * np.exp(np.cumsum(f.draw.normal(scale=0.01, size=(4, 128)), -1)))
    r = p.part(1, 128).log() - p.part(0, 127).log()
    return ((r - r.mean()) ** 2.0).mean().sqrt() * 15.87


def drawdown(f: Formula) -> Tensor:
    p = f.input(100.0 * np.exp(np.cumsum(f.draw.normal(scale=0.005, size=(4, 128)), -1)))
    return 1.0 - p / p.most()


def bond(f: Formula) -> Tensor:
    """Drop of a price by a hundredth of a percent more yield."""
    y = f.uniform(16, 1, low=0.01, high=0.08)
    t = f.constant(np.arange(1, 31, dtype=np.float32).reshape(1, 30))
    price = ((y + 1.0).log() * t * -1.0).exp().sum()
    return price - ((y + 1.0001).log() * t * -1.0).exp().sum()


def altitude(f: Formula) -> Tensor:
    p = f.uniform(64, 1, low=95000.0, high=101300.0)
    return (1.0 - (p / 101325.0) ** 0.190295) * 44330.0


def counts_to_volts(f: Formula) -> Tensor:
    return (f.input(f.draw.integers(1900, 2200, (64, 8)).astype(np.float32)) - 2048.0) * 0.000805


def digits(f: Formula) -> Tensor:
    n = f.input(f.draw.integers(0, 100000, (64, 1)).astype(np.float32))
    tens = (n / 10.0).floor()
    return (n - tens * 10.0).integer()


def congruential(f: Formula) -> Tensor:
    x = f.input(f.draw.integers(0, 4096, (64, 1)).astype(np.float32))
    for _ in range(3):
        y = x * 1229.0 + 1.0
        x = y - (y / 4096.0).floor() * 4096.0
    return x


def rating(f: Formula) -> Tensor:
    a = f.uniform(64, 1, low=800.0, high=2800.0)
    return 1.0 / (f.constant(np.float32(10.0)) ** ((near(f, a, 30.0) - a) / 400.0) + 1.0)
