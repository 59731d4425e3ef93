"""Recursions, unrolled and in loops: scans, online sums, filters, integrators, dynamic programs."""

import numpy as np

from tests.formulas.formula import Formula, Tensor, concat
from tests.formulas.geometry import column, near


def row(x: Tensor, i: int) -> Tensor:
    return x.part(i, i + 1, 0)


def log_add(a: Tensor, b: Tensor) -> Tensor:
    return a.max(b) + ((-((a - b).abs())).exp() + 1.0).log()


def scores(f: Formula, rows: int, columns: int, scale: float = 1.0) -> Tensor:
    return (f.normal(rows, 32) @ f.weight(32, columns)) * scale


# --- attention in pieces ---


def online_softmax(f: Formula) -> Tensor:
    """Ring attention: a maximum, a sum and a mean that every block brings up to date."""
    top, total, mean = None, None, None
    scale = f.number(1, 30)
    for _ in range(4):
        s, v = scores(f, 16, 16, scale), f.normal(16, 8)
        here = s.most()
        new = here if top is None else top.max(here)
        p = (s - new).exp()
        shrink = None if top is None else (top - new).exp()
        total = p.sum() if total is None else total * shrink + p.sum()
        mean = p @ v if mean is None else mean * shrink + p @ v
        top = new
    return mean / total


def merged_by_logarithms(f: Formula) -> Tensor:
    """Flash attention in two halves, put together by the logarithms of their sums."""
    a, b = (scores(f, 16, 64, f.number(1, 20)) for _ in range(2))
    p, q = (x.reduced("LogSumExp", -1) for x in (a, b))
    both = log_add(p, q)
    return (a.softmax() @ f.normal(64, 8)) * (p - both).exp() + (b.softmax() @ f.normal(64, 8)) * (
        q - both
    ).exp()


def recomputed_softmax(f: Formula) -> Tensor:
    """The backward pass of flash attention: probabilities from scores and the logarithm of their sum."""
    s = scores(f, 16, 64, f.number(1, 60))
    return (s - s.reduced("LogSumExp", -1)).exp() @ f.weight(64, 8)


def entropy_of_attention(f: Formula) -> Tensor:
    s = scores(f, 16, 64, f.number(1, 20))
    return s.reduced("LogSumExp", -1) - (s.softmax() * s).sum()


def segment_sums(f: Formula) -> Tensor:
    """Mamba 2: decays between two places, as differences of a running sum."""
    n = f.size(64, 256)
    step = (f.normal(2, n) - 3.0).softplus() * -f.number(0.1, 8)
    total = step.cumsum()
    later = f.constant(np.triu(np.ones((n, n), bool), 1))
    decay = (total.reshape(2, n, 1) - total.reshape(2, 1, n)).exp()
    return f.constant(np.float32(0.0)).else_(later, decay) @ f.weight(n, 8)


def wkv(f: Formula) -> Tensor:
    """RWKV: a mean whose weights decay, kept beside the largest exponent."""
    decay, first = -f.uniform(1, 8, low=0.001, high=0.2), f.normal(1, 8)
    k, v = scores(f, 16, 8, f.number(1, 10)), scores(f, 16, 8)
    top, above, below = row(k, 0), row(v, 0), row(v, 0) * 0.0 + 1.0
    for i in range(1, 16):
        best = top.max(first + row(k, i))
        p, q = (top - best).exp(), (first + row(k, i) - best).exp()
        out = (p * above + q * row(v, i)) / (p * below + q)
        best = (top + decay).max(row(k, i))
        p, q = (top + decay - best).exp(), (row(k, i) - best).exp()
        above, below, top = p * above + q * row(v, i), p * below + q, best
    return out


def delta_rule(f: Formula) -> Tensor:
    k, v = f.normal(12, 8), f.normal(12, 8)
    k = k / (k * k).sum().sqrt()
    state = f.constant(np.zeros((8, 8)))
    for i in range(12):
        x = row(k, i)
        state = state * 0.98 + x.transpose() @ (row(v, i) - x @ state) * 0.9
    return f.normal(4, 8) @ state


def scan_in_a_loop(f: Formula) -> Tensor:
    """A state space, token by token."""
    x, a = f.normal(f.size(32, 256), 8) @ f.weight(8, 8), f.uniform(1, 8, low=0.9, high=0.9999)
    return f.repeat(x, f.constant(np.zeros((1, 8))), lambda state, row: state * a + row)


# --- sums in logarithms ---


def connectionist(f: Formula) -> Tensor:
    """CTC by hand: three ways into a state, -1e30 where there is none."""
    p = scores(f, 24, 7, 4.0).log_softmax()
    a = concat(row(p, 0).part(0, 2), f.constant(np.full((1, 5), -1e30)))
    for i in range(1, 24):
        one = concat(f.constant(np.full((1, 1), -1e30)), a.part(0, 6))
        two = concat(f.constant(np.full((1, 2), -1e30)), a.part(0, 5))
        a = log_add(log_add(a, one), two) + row(p, i)
    return -log_add(a.part(5, 6), a.part(6, 7))


def logarithms_in_a_loop(f: Formula) -> Tensor:
    p = scores(f, f.size(16, 64), 8, f.number(1, 8)).log_softmax()
    move = f.normal(8, 8).log_softmax()
    step = f.normal(1, 8).log_softmax()

    def turn(total: Tensor, row: Tensor) -> Tensor:
        return (total.reshape(8, 1) + move).reduced("LogSumExp", 0) + row

    return f.repeat(p, step, turn).reduced("LogSumExp", -1)


def soft_time_warping(f: Formula) -> Tensor:
    x, y = f.normal(1, 7, mean=f.number(0.1, 20)), f.normal(7, 1)
    y = near(f, x, 0.3).reshape(7, 1)
    cost, gamma = (x - y) ** 2.0, f.number(0.01, 1)
    table: dict[tuple[int, int], Tensor] = {}
    for i in range(7):
        for j in range(7):
            before = [table[p] for p in ((i - 1, j), (i, j - 1), (i - 1, j - 1)) if p in table]
            here = column(row(cost, i), j)
            least = (concat(*before) / -gamma).reduced("LogSumExp", -1) * -gamma if before else 0.0
            table[i, j] = here + least
    return table[6, 6]


def edit_distance(f: Formula) -> Tensor:
    cost = f.input(f.draw.integers(0, 2, (6, 6)).astype(np.float32))
    above = [f.constant(np.full((1, 1), float(j))) for j in range(7)]
    for i in range(6):
        here = [f.constant(np.full((1, 1), i + 1.0))]
        for j in range(6):
            change = above[j] + column(row(cost, i), j)
            here.append(change.min((above[j + 1] + 1.0).min(here[j] + 1.0)))
        above = here
    return above[6]


def best_path(f: Formula) -> Tensor:
    """Viterbi, less the score of the second best end."""
    move, p = f.normal(6, 6), scores(f, 12, 6, 3.0).log_softmax()
    total = row(p, 0)
    for i in range(1, 12):
        total = (total.reshape(6, 1) + move).most(0) + row(p, i)
    return total.most() - total


def stick_breaking(f: Formula) -> Tensor:
    """The share that is left after each break, by a running sum of logarithms."""
    x = scores(f, 16, 32, f.number(1, 6))
    rest = (-(x.softplus())).cumsum()
    return (rest + x).exp() @ f.weight(32, 8)


def logistic_by_differences(f: Formula) -> Tensor:
    """PixelCNN++: the logarithm of a difference of two sigmoids, by softplus."""
    x = f.input(f.draw.integers(1, 255, (32, 8)).astype(np.float32) / 127.5 - 1.0)
    scale = scores(f, 32, 8).exp() * f.number(1, 30)
    upper, lower = ((x - scores(f, 32, 8, 0.3) + s / 255.0) * scale for s in (1.0, -1.0))
    return (1.0 - (-(scale / 127.5)).exp()).log() - upper.softplus() - lower.softplus() + upper


# --- running statistics ---


def welford(f: Formula) -> Tensor:
    x = f.normal(16, 4, mean=f.number(1, 1000))
    mean, square = row(x, 0), row(x, 0) * 0.0
    for i in range(1, 16):
        d = row(x, i) - mean
        mean = mean + d / (i + 1.0)
        square = square + d * (row(x, i) - mean)
    return square / 15.0


def compensated_sum(f: Formula) -> Tensor:
    """Kahan's sum of a large and many small numbers."""
    x = f.uniform(24, 4, high=f.number(0.001, 1))
    total, lost = f.normal(1, 4, mean=f.number(10, 10000)), row(x, 0) * 0.0
    for i in range(24):
        y = row(x, i) - lost
        new = total + y
        lost = (new - total) - y
        total = new
    return total


def slow_average(f: Formula) -> Tensor:
    """An average that a thousandth of every value goes into, in a loop."""
    x = f.normal(f.size(100, 1000), 8, mean=f.number(0.1, 30))
    return f.repeat(x, f.constant(np.zeros((1, 8))), lambda mean, row: mean + (row - mean) * 0.001)


def batch_statistics(f: Formula) -> Tensor:
    """Change of running statistics of 0.99 by one batch."""
    old, x = f.normal(1, 16, mean=f.number(0.1, 50)), f.normal(256, 16, mean=f.number(0.1, 50))
    return old * 0.99 + x.mean(0) * 0.01 - old


def merged_variances(f: Formula) -> Tensor:
    """Chan's formula: two variances and the difference of their means."""
    x = f.normal(64, 4, mean=f.number(1, 300))
    y = f.normal(64, 4, mean=f.number(1, 300))
    apart = y.mean(0) - x.mean(0)
    return ((x - x.mean(0)) ** 2.0).sum(0) + ((y - y.mean(0)) ** 2.0).sum(0) + apart * apart * 32.0


# --- integrators and controllers ---


def verlet(f: Formula) -> Tensor:
    x = f.normal(32, 1, mean=f.number(1, 30))
    before = x - f.normal(32, 1, scale=0.01)
    for _ in range(8):
        x, before = x * 2.0 - before - x * 1e-4, x
    return x - before


def controller(f: Formula) -> Tensor:
    """PID: a sum of errors, and a difference of two over a short time."""
    target = f.normal(16, 1, mean=f.number(1, 100))
    errors = [near(f, target, 0.1) - target for _ in range(6)]
    total = errors[0]
    for e in errors[1:]:
        total = total + e * 0.01
    return errors[-1] * 1.2 + total * 0.5 + (errors[-1] - errors[-2]) / 0.01


def lorenz(f: Formula) -> Tensor:
    x, y, z = (f.normal(16, 1, mean=m) for m in (5.0, 5.0, 25.0))
    for _ in range(6):
        x, y, z = x + (y - x) * 0.1, y + (x * (28.0 - z) - y) * 0.01, z + (x * y - z * 2.667) * 0.01
    return concat(x, y, z)


def kepler(f: Formula) -> Tensor:
    mean, e = f.uniform(32, 1, low=0.1, high=3.0), f.uniform(32, 1, low=0.1, high=0.9)
    x = mean
    for _ in range(5):
        x = x - (x - e * x.sin() - mean) / (1.0 - e * x.cos())
    return x


def falling(f: Formula) -> Tensor:
    """Speed and height of what falls with drag, in a loop."""
    wind = f.normal(f.size(50, 400), 4)
    start = f.constant(np.full((1, 4), 100.0))

    def turn(v: Tensor, row: Tensor) -> Tensor:
        return v + ((v - row) * (v - row).abs() * -0.002 + 9.81) * 0.01

    return f.repeat(wind, start, turn)


# --- iterations ---


def conjugate_gradients(f: Formula) -> Tensor:
    a = f.normal(8, 8)
    a = a @ a.transpose() * 0.1 + f.constant(np.eye(8))
    b = f.normal(8, 1)
    x, r, p = b * 0.0, b, b
    for _ in range(4):
        ap = a @ p
        rr = (r * r).sum(0)
        alpha = rr / (p * ap).sum(0)
        x, r = x + p * alpha, r - ap * alpha
        p = r + p * ((r * r).sum(0) / rr)
    return x


def inverse_by_newton(f: Formula) -> Tensor:
    a = f.constant(np.eye(8)) + f.normal(8, 8, scale=0.05)
    x = f.constant(np.eye(8))
    for _ in range(4):
        x = x * 2.0 - x @ a @ x
    return x


def root_by_newton(f: Formula) -> Tensor:
    x = f.uniform(16, 8, low=1e-3, high=1e3)
    y = x * 0.0 + 1.0
    for _ in range(12):
        y = (y + x / y) * 0.5
    return y


def exponential_of_a_matrix(f: Formula) -> Tensor:
    a = f.normal(6, 6, scale=0.3)
    term = total = f.constant(np.eye(6))
    for i in range(1, 10):
        term = (term @ a) / float(i)
        total = total + term
    return total


def two_loop(f: Formula) -> Tensor:
    """L-BFGS: differences of iterates and of gradients, divided by their product."""
    x, g = f.normal(32, 1, mean=3.0), f.normal(32, 1)
    s, y = near(f, x, 0.01) - x, near(f, g, 0.02) - g
    rho = 1.0 / ((y * y).sum(0) + 1e-8)
    return g - y * (rho * (s * g).sum(0))


def sparse_shares(f: Formula) -> Tensor:
    """Sparsemax: a threshold from a running sum of sorted scores."""
    n = f.size(16, 128)
    x = scores(f, 16, n, 2.0)
    order = x.sorted()
    support = (order * f.constant(np.arange(1, n + 1, dtype=np.float32)) + 1.0 > order.cumsum()).real()
    share = support.sum()
    return (x - ((order * support).sum() - 1.0) / share).relu()


def nucleus(f: Formula) -> Tensor:
    """Top-p: how many of the sorted probabilities add up to less."""
    p = f.input(f.draw.dirichlet(np.full(f.size(50, 500), 0.1), 16)).sorted()
    return ((p.cumsum() < 0.9).real().sum() + 1.0).integer()


def by_bisection(f: Formula) -> Tensor:
    x = scores(f, 16, 32, 3.0)
    low, high = x.most() - 1.0, x.most()
    for _ in range(12):
        middle = (low + high) * 0.5
        more = ((x - middle).relu().sum()) > 1.0
        low, high = middle.else_(more, low), high.else_(more, middle)
    return (x - low).relu()


def unwrapped(f: Formula) -> Tensor:
    phase = np.cumsum(f.draw.uniform(0.5, 2.5, (4, 64)), -1)
    x = f.input(np.angle(np.exp(1j * phase)))
    d = x.part(1, 64) - x.part(0, 63)
    return (d - (d / 6.2831853).round() * 6.2831853).cumsum()


def filters_in_series(f: Formula) -> Tensor:
    x = f.normal(20, 4)
    for a, b in ((1.8, -0.85), (1.6, -0.7)):
        y, old, rows = x.part(0, 1, 0) * 0.0, x.part(0, 1, 0) * 0.0, []
        for i in range(20):
            y, old = row(x, i) * 0.05 + y * a + old * b, y
            rows.append(y)
        x = concat(*rows, axis=0)
    return x


def goertzel(f: Formula) -> Tensor:
    x = f.normal(32, 4)
    s, old = row(x, 0) * 0.0, row(x, 0) * 0.0
    for i in range(32):
        s, old = row(x, i) + s * 1.9 - old, s
    return s * s + old * old - s * old * 1.9


def levinson(f: Formula) -> Tensor:
    """Prediction errors from correlations of a smooth signal."""
    r = f.input(0.95 ** np.arange(4).reshape(4, 1) * (1.0 + f.draw.uniform(0, 0.01, (4, 1))))
    k1 = row(r, 1) / row(r, 0)
    e1 = row(r, 0) * (1.0 - k1 * k1)
    k2 = (row(r, 2) - k1 * row(r, 1)) / e1
    return e1 * (1.0 - k2 * k2)
