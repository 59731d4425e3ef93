"""An MLP, a CNN and an attention block in JAX: the same networks as in :mod:`torch_networks`.

Each is a loss of parameters and a batch, given by shapes alone. Products are written as in JAX's own
libraries (``x @ w + b``), images with channels last.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A loss, and the shapes of its parameters and batch."""

    loss: Callable[..., Any]
    parameters: Mapping[str, Any]
    batch: Mapping[str, Any]


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _labels(rows: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows,), jnp.int32)


def _linear(inputs: int, outputs: int) -> Mapping[str, Any]:
    return {"kernel": _floats(inputs, outputs), "bias": _floats(outputs)}


def _norm(width: int) -> Mapping[str, Any]:
    return {"scale": _floats(width), "bias": _floats(width)}


def _dense(p: Any, x: Any) -> Any:
    return x @ p["kernel"] + p["bias"]


def _normalized(p: Any, x: Any, axes: tuple[int, ...]) -> Any:
    mean = x.mean(axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def _cross_entropy(logits: Any, label: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[:, None], axis=1).mean()


def _gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


def _mlp(p: Any, x: Any, label: Any) -> Any:
    hidden = _gelu(_dense(p["second"], _gelu(_dense(p["first"], x))))
    return _cross_entropy(_dense(p["head"], hidden), label)


def _convolved(kernel: Any, x: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _cnn(p: Any, x: Any, label: Any) -> Any:
    x = jax.nn.relu(_normalized(p["norm1"], _convolved(p["first"], x), (0, 1, 2)))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(_normalized(p["norm2"], _convolved(p["second"], x), (0, 1, 2)))
    return _cross_entropy(_dense(p["head"], x.mean((1, 2))), label)


def _attention(p: Any, x: Any, target: Any, heads: int = 8) -> Any:
    h = _normalized(p["norm1"], x, (-1,))
    batch, length, width = x.shape
    q, k, v = (
        _dense(p[name], h).reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)
        for name in ("query", "key", "value")
    )
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) * (width // heads) ** -0.5)
    x = x + _dense(p["out"], (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, width))
    x = x + _dense(p["narrow"], _gelu(_dense(p["wide"], _normalized(p["norm2"], x, (-1,)))))
    return ((x - target) ** 2).mean()


NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "mlp": Network(
            loss=_mlp,
            parameters={
                "first": _linear(256, 1024), "second": _linear(1024, 1024), "head": _linear(1024, 128)
            },
            batch={"x": _floats(4096, 256), "label": _labels(4096)},
        ),
        "cnn": Network(
            loss=_cnn,
            parameters={
                "first": _floats(3, 3, 64, 128), "norm1": _norm(128),
                "second": _floats(3, 3, 128, 256), "norm2": _norm(256), "head": _linear(256, 128),
            },
            batch={"x": _floats(64, 28, 28, 64), "label": _labels(64)},
        ),
        "attention": Network(
            loss=_attention,
            parameters={
                **{name: _linear(512, 512) for name in ("query", "key", "value", "out")},
                "norm1": _norm(512), "norm2": _norm(512),
                "wide": _linear(512, 2048), "narrow": _linear(2048, 512),
            },
            batch={"x": _floats(32, 128, 512), "target": _floats(32, 128, 512)},
        ),
    }
)  # fmt: skip
