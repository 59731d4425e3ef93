"""Attention, normalization and positions."""

import numpy as np

from tests.formulas.formula import Formula, Tensor, concat


def heads(f: Formula, length: int, width: int = 32, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    x = f.normal(2, length, width, scale=scale)
    q, k, v = (x @ f.weight(width, width) for _ in range(3))
    return q, k, v


def plain(f: Formula) -> Tensor:
    q, k, v = heads(f, f.size(16, 64))
    return ((q @ k.transpose()) / 32.0**0.5).softmax() @ v


def unscaled_scores(f: Formula) -> Tensor:
    q, k, v = heads(f, 32, 64, f.number(1, 20))
    return ((q @ k.transpose()) * 0.125).softmax() @ v


def masked(f: Formula) -> Tensor:
    n = f.size(16, 64)
    q, k, v = heads(f, n)
    penalty = (1.0 - f.mask(2, 1, n)) * f.rng.choice((-1e4, -1e9, -3e38))
    return ((q @ k.transpose()) / 5.65 + penalty).softmax() @ v


def causal(f: Formula) -> Tensor:
    n = f.size(16, 64)
    q, k, v = heads(f, n)
    later = f.constant(np.triu(np.ones((n, n), bool), 1))
    return f.constant(np.float32(f.rng.choice((-1e4, -1e9)))).else_(later, q @ k.transpose()).softmax() @ v


def alibi(f: Formula) -> Tensor:
    n = f.size(64, 512)
    q, k, v = heads(f, n)
    distance = f.arange(n).reshape(1, n) - f.arange(n).reshape(n, 1)
    return ((q @ k.transpose()) / 5.65 + distance * f.number(0.004, 0.5)).softmax() @ v


def alibi_by_mask(f: Formula) -> Tensor:
    n = f.size(64, 512)
    q, k, v = heads(f, n)
    position = f.input(np.ones((2, 1, n), np.int64)).cumsum().real() - 1.0
    return ((q @ k.transpose()) / 5.65 + position * f.number(0.05, 0.5)).softmax() @ v


def rotary(f: Formula) -> Tensor:
    n = f.size(64, 2048)
    x = f.normal(2, n, 32) @ f.weight(32, 32)
    frequency = f.constant((10000.0 ** (-np.arange(16) / 16)).reshape(1, 16))
    angle = f.arange(n).reshape(n, 1) * frequency
    a, b = x.part(0, 16), x.part(16, 32)
    return concat(a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin())


def linear_elu(f: Formula) -> Tensor:
    q, k, v = heads(f, f.size(256, 2048))
    q, k = q.elu() + 1.0, k.elu() + 1.0
    return (q @ (k.transpose() @ v)) / (q @ k.sum(1).transpose() + 1e-6)


def linear_relu(f: Formula) -> Tensor:
    q, k, v = heads(f, f.size(256, 2048))
    q, k = q.relu(), k.relu()
    return (q @ (k.transpose() @ v)) / (q @ k.sum(1).transpose() + f.number(1e-8, 1e-2))


def linear_running(f: Formula) -> Tensor:
    q, k, v = (x.elu() + 1.0 for x in heads(f, f.size(64, 1024)))
    return (q * (k * v).cumsum(1)) / (q * k.cumsum(1)).sum()


def random_features(f: Formula) -> Tensor:
    q, k, v = heads(f, 64, 32, 2.0)
    q, k = (((x @ f.weight(32, 64)) - (x * x).sum() * 0.5).exp() + 1e-4 for x in (q, k))
    return (q @ (k.transpose() @ v)) / (q @ k.sum(1).transpose())


def cosine_scores(f: Formula) -> Tensor:
    q, k, v = heads(f, 32)
    q, k = (x / ((x * x).sum() + 1e-12).sqrt() for x in (q, k))
    return ((q @ k.transpose()) * f.number(5, 100)).softmax() @ v


def softmax_by_hand(f: Formula) -> Tensor:
    e = ((f.normal(16, 32) @ f.weight(32, 64)) * f.number(1, 6)).exp()
    return (e / e.sum()) @ f.weight(64, 32)


def softmax_without_a_row(f: Formula) -> Tensor:
    m = f.mask(16, 64)
    e = (f.normal(16, 32) @ f.weight(32, 64)).exp() * m
    return (e / (e.sum() + 1e-9)) @ f.weight(64, 32)


def soft_capping(f: Formula) -> Tensor:
    cap = f.number(20, 100)
    return ((((f.normal(16, 32) @ f.weight(32, 64)) * 30.0) / cap).tanh() * cap).softmax()


def sigmoid_scores(f: Formula) -> Tensor:
    q, k, v = heads(f, 256)
    return ((q @ k.transpose()) / 5.65 - 5.5).sigmoid() @ v


def decay(f: Formula) -> Tensor:
    """Retention: powers of a number next to 1."""
    n = f.size(64, 1024)
    q, k, v = heads(f, n)
    distance = (f.arange(n).reshape(n, 1) - f.arange(n).reshape(1, n)).max(f.constant(np.float32(0.0)))
    return ((q @ k.transpose()) * (distance * float(np.log(1 - 2.0**-8))).exp()) @ v


def state_space(f: Formula) -> Tensor:
    x = f.normal(2, f.size(64, 1024), 32) @ f.weight(32, 32)
    step = (f.normal(2, x.shape[1], 1) - 2.0).softplus()
    weight = (step * -1.0).cumsum(1)
    return ((x * step) * (-weight).exp()).cumsum(1) * weight.exp()


def relative_bucket(f: Formula) -> Tensor:
    n = f.size(64, 512)
    distance = (f.arange(n).reshape(1, n) - f.arange(n).reshape(n, 1)).abs() + 1.0
    bucket = (distance.log() * (16.0 / np.log(n))).floor().integer()
    return f.weight(32, 8).take(bucket)


def layer_norm(f: Formula) -> Tensor:
    x = f.normal(16, 64, mean=f.number(0.1, 300)) @ f.weight(64, 64)
    d = x - x.mean()
    return (d / ((d * d).mean() + 1e-5).sqrt()) @ f.weight(64, 64)


def layer_norm_by_moments(f: Formula) -> Tensor:
    x = f.normal(16, 64, mean=f.number(0.1, 30))
    return ((x - x.mean()) / ((x * x).mean() - x.mean() ** 2.0 + 1e-5).sqrt()) @ f.weight(64, 64)


def layer_norm_of_equal_rows(f: Formula) -> Tensor:
    x = f.input(np.repeat(f.draw.standard_normal((16, 1)), 64, 1))
    d = x - x.mean()
    return (d / ((d * d).mean() + f.rng.choice((1e-12, 1e-5))).sqrt()) @ f.weight(64, 64)


def rms_norm(f: Formula) -> Tensor:
    x = (f.normal(16, 64) @ f.weight(64, 64)) * f.number(0.001, 300)
    return (x / ((x * x).mean() + 1e-6).sqrt()) @ f.weight(64, 64)


def group_norm(f: Formula) -> Tensor:
    x = f.normal(4, 8, 512, mean=f.number(0.1, 50))
    d = x - x.mean()
    return d / ((d**2.0).mean() + 1e-5).sqrt()


def weight_norm(f: Formula) -> Tensor:
    v = f.normal(64, 64, scale=0.02)
    return f.normal(16, 64) @ (v / (v * v).sum(0).sqrt())


def spectral_norm(f: Formula) -> Tensor:
    w, u = f.normal(64, 64, scale=0.05), f.normal(64, 1)
    v = w.transpose() @ u
    v = v / ((v * v).sum(0).sqrt() + 1e-12)
    u = w @ v
    return f.normal(16, 64) @ (w / (u * u).sum(0).sqrt())


def local_response(f: Formula) -> Tensor:
    x = (f.normal(16, 64) @ f.weight(64, 64)) * 10.0
    return x / (((x * x).mean() * 1e-4 + 1.0) ** 0.75)


def orthogonal_by_newton_schulz(f: Formula) -> Tensor:
    x = f.normal(32, 32, scale=0.02)
    x = x / ((x * x).sum(None).sqrt() + 1e-7)
    for _ in range(3):
        a = x @ x.transpose()
        x = x * 3.4445 + (a * -4.775 + (a @ a) * 2.0315) @ x
    return x


def gelu_by_tanh(f: Formula) -> Tensor:
    x = (f.normal(16, 64) @ f.weight(64, 64)) * f.number(1, 60)
    return (x * 0.5) * (((x + x**3.0 * 0.044715) * 0.7978845608).tanh() + 1.0)


def gelu_by_erf(f: Formula) -> Tensor:
    x = (f.normal(16, 64) @ f.weight(64, 64)) * 3.0
    return x * 0.5 * ((x * 0.70710678).erf() + 1.0)


def swish_of_large(f: Formula) -> Tensor:
    x = (f.normal(16, 64) @ f.weight(64, 64)) * 30.0
    return x / ((-x).exp() + 1.0)


def mish(f: Formula) -> Tensor:
    x = (f.normal(16, 64) @ f.weight(64, 64)) * 6.0
    return x * ((x.exp() + 1.0).log()).tanh()


def squared_relu(f: Formula) -> Tensor:
    return ((f.normal(16, 64) @ f.weight(64, 64)) * f.number(1, 200)).relu() ** 2.0 @ f.weight(64, 16)


def top_expert(f: Formula) -> Tensor:
    x = f.normal(64, 32)
    gate = (x @ f.weight(32, 8)).softmax()
    return (gate / (gate.most() + 1e-9)) @ f.weight(8, 32)


def expert_capacity(f: Formula) -> Tensor:
    """Positions of tokens in the queue of their expert."""
    n = f.size(512, 4096)
    hot = f.constant(np.eye(4, dtype=np.float32)[f.draw.integers(0, 4, n)])
    return (hot.cumsum(0) * hot).sum().integer()
