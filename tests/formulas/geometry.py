"""Rotations, distances, projections, areas, and small linear algebra."""

import numpy as np

from tests.formulas.formula import Formula, Tensor, concat


def column(x: Tensor, i: int) -> Tensor:
    return x.part(i, i + 1)


def near(f: Formula, x: Tensor, distance: float) -> Tensor:
    """Data that lies close to other data."""
    return f.input(f.formula_value(x) + distance * f.draw.standard_normal(x.shape))


def unit(x: Tensor) -> Tensor:
    return x / (x * x).sum().sqrt()


# --- geometry ---


def rotation_by_quaternion(f: Formula) -> Tensor:
    q = unit(f.normal(32, 4))
    w, x, y, z = (column(q, i) for i in range(4))
    return concat(1.0 - (y * y + z * z) * 2.0, (x * y - w * z) * 2.0, (x * z + w * y) * 2.0) @ f.weight(3, 3)


def angle_of_quaternions(f: Formula) -> Tensor:
    a = f.normal(32, 4)
    b = near(f, a, f.number(0.01, 0.1))
    dot = (unit(a) * unit(b)).sum().abs().clip(0.0, 1.0 - 1e-7)
    return dot.acos() * 2.0


def angle_of_rotation(f: Formula) -> Tensor:
    """The angle of a small rotation, by the trace of its matrix."""
    t = f.uniform(32, 1, low=0.03, high=0.3)
    trace = t.cos() * 2.0 + 1.0
    return ((trace - 1.0) * 0.5).clip(-1 + 1e-6, 1 - 1e-6).acos()


def rodrigues(f: Formula) -> Tensor:
    v = f.normal(32, 3, scale=f.number(1e-3, 1))
    t = ((v * v).sum() + 1e-12).sqrt()
    return v * (t.sin() / t) + v * v * ((1.0 - t.cos()) / (t * t))


def geodesic_on_sphere(f: Formula) -> Tensor:
    a = f.normal(32, 3)
    b = near(f, a, 0.01)
    a, b = unit(a), unit(b)
    return ((a - b) ** 2.0).sum().sqrt() * 0.5


def great_circle_by_cosines(f: Formula) -> Tensor:
    a, b = f.uniform(32, 1, low=-1.4, high=1.4), f.uniform(32, 1, low=-1.4, high=1.4)
    d = f.uniform(32, 1, low=0.05, high=0.5)
    return (a.sin() * b.sin() + a.cos() * b.cos() * d.cos()).clip(-0.999999, 0.999999).acos() * 6371.0


def poincare(f: Formula) -> Tensor:
    x = f.uniform(64, 2, low=-0.69, high=0.69)
    y = near(f, x, 0.003)
    square = ((x - y) ** 2.0).sum()
    return (square * 2.0 / ((1.0 - (x * x).sum()) * (1.0 - (y * y).sum())) + 1.0 + 1e-7).log()


def projected_points(f: Formula) -> Tensor:
    """A camera far from the origin: translation and focal length in the hundreds."""
    p = f.uniform(64, 3, low=-1.0, high=1.0) @ f.constant(np.eye(3)) + f.constant([[500.0, -300.0, 800.0]])
    local = p - f.constant([[500.2, -299.9, 790.0]])
    return column(local, 0) / column(local, 2) * 1200.0 + 960.0


def disparity(f: Formula) -> Tensor:
    depth = f.uniform(64, 8, low=0.5, high=f.number(10, 300))
    return 1.0 / (1.0 / depth - 0.001)


def signed_area(f: Formula) -> Tensor:
    """The shoelace formula of a small polygon far from the origin."""
    x, y = f.uniform(16, 8, high=5.0) + 300.0, f.uniform(16, 8, high=5.0) + 300.0
    a = x.part(0, 7) * y.part(1, 8) - x.part(1, 8) * y.part(0, 7)
    return a.sum() * 0.5


def barycentric(f: Formula) -> Tensor:
    a, b, c = (f.uniform(32, 2, low=200.0, high=240.0) for _ in range(3))
    p = (a + b + c) / 3.0
    (ux, uy), (vx, vy), (px, py) = ((column(z - a, 0), column(z - a, 1)) for z in (b, c, p))
    return (px * vy - vx * py) / (ux * vy - vx * uy + 1e-6)


def point_normals(f: Formula) -> Tensor:
    p = f.uniform(32, 3, high=2.0) + f.number(1, 100)
    q, r = near(f, p, 0.1), near(f, p, 0.1)
    u, v = q - p, r - p
    return column(u, 0) * column(v, 1) - column(u, 1) * column(v, 0)


def eikonal(f: Formula) -> Tensor:
    g = unit(f.normal(64, 3)) * (f.uniform(64, 1, low=-0.02, high=0.02) + 1.0)
    return ((g * g).sum().sqrt() - 1.0) ** 2.0


def box_to_corners(f: Formula) -> Tensor:
    center, size = f.uniform(64, 2, high=1.0) * 640.0, f.uniform(64, 2, low=0.005, high=0.05) * 640.0
    low, high = center - size * 0.5, center + size * 0.5
    return (high - low).product().sqrt()


def anchor_deltas(f: Formula) -> Tensor:
    anchor = f.uniform(64, 2, low=16.0, high=1300.0)
    box = near(f, anchor, 2.0)
    return (box - anchor) / f.uniform(64, 2, low=8.0, high=32.0)


# --- linear algebra ---


def power_iteration(f: Formula) -> Tensor:
    w, v = f.normal(32, 32, scale=f.number(1e-3, 30)), f.normal(32, 1)
    for _ in range(4):
        u = w @ v
        u = u / ((u * u).sum(0).sqrt() + 1e-12)
        v = w.transpose() @ u
        v = v / ((v * v).sum(0).sqrt() + 1e-12)
    return u.transpose() @ w @ v


def whitening(f: Formula) -> Tensor:
    x = f.normal(256, 8, mean=f.number(0.1, 30))
    d = x - x.mean(0)
    c = (d.transpose() @ d) / 255.0 + f.constant(np.eye(8) * 1e-5)
    trace = (c * f.constant(np.eye(8))).sum(None)
    c, p = c / trace, f.constant(np.eye(8))
    for _ in range(3):
        p = p * 1.5 - (p @ p @ p @ c) * 0.5
    return d @ p


def cholesky_of_three(f: Formula) -> Tensor:
    b = f.normal(16, 3)
    r = f.number(0.9, 0.999)
    a11, a21 = (b * b).sum() + 1.0, (b * b).sum() * r
    l11 = a11.sqrt()
    l21 = a21 / l11
    return ((b * b).sum() + 1.0 - l21 * l21).sqrt()


def kalman(f: Formula) -> Tensor:
    x, p = f.normal(16, 1, mean=f.number(1, 300)), f.uniform(16, 1, low=0.1, high=1000.0)
    for _ in range(5):
        p = p + 1e-4
        gain = p / (p + 0.01)
        x = x + gain * (near(f, x, 0.1) - x)
        p = (1.0 - gain) * p
    return p


def kalman_state(f: Formula) -> Tensor:
    x, p = f.normal(16, 1, mean=f.number(1, 300)), f.uniform(16, 1, low=0.1, high=10.0)
    z = near(f, x, 0.1)
    gain = p / (p + 0.5)
    return gain * (z - x)


def mahalanobis(f: Formula) -> Tensor:
    x, mean = f.normal(64, 8, mean=100.0), f.constant(np.full((1, 8), 100.0))
    d = x - mean
    return ((d @ f.weight(8, 8)) * d).sum()


def inverse_of_two(f: Formula) -> Tensor:
    a, d = f.uniform(32, 1, low=1.0, high=1.1), f.uniform(32, 1, low=1.0, high=1.1)
    b = f.uniform(32, 1, low=0.9, high=0.99)
    return d / (a * d - b * b)


def gram_style(f: Formula) -> Tensor:
    x = (f.normal(16, 64) @ f.weight(64, 4096)) * 20.0
    return (x @ x.transpose()) / 65536.0


def gaussian_process(f: Formula) -> Tensor:
    x = f.uniform(64, 1, high=1.0)
    k = (((x - x.transpose()) ** 2.0) * -50.0).exp()
    return k @ f.weight(64, 1)


def two_points_regression(f: Formula) -> Tensor:
    """The slope of a line by sums, years on the axis."""
    x = f.input(1990.0 + np.arange(32).reshape(1, 32))
    y = f.input(f.formula_value(x) * 0.5 + f.draw.standard_normal((1, 32)))
    top = (x * y).sum() * 32.0 - x.sum() * y.sum()
    return top / ((x * x).sum() * 32.0 - x.sum() ** 2.0)
