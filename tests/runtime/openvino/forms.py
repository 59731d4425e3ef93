"""Nodes with windows, sizes and states in any form that ONNX allows, of fixed sizes or those of data."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto

FLOAT, BF16 = TensorProto.FLOAT, TensorProto.BFLOAT16
OPSET = 22
_COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"),
    *("align_corners", "asymmetric", "tf_crop_and_resize"),
)
_NORMALIZATIONS = (
    *("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LayerNormalization"),
    *("RMSNormalization", "LpNormalization", "MeanVarianceNormalization", "LRN"),
    *("Softmax", "LogSoftmax", "Hardmax"),
)


@dataclass
class Form:
    """A node, the shape of its data, and its other inputs, by name; integers are constants."""

    op: str
    data: tuple[int, ...]
    others: dict[str, np.ndarray] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = OPSET
    positions: tuple[str, ...] | None = None  # inputs in order, "" for those left out

    @property
    def data_inputs(self) -> list[str]:
        """Other inputs that are data, not settings."""
        settings = ("scales", "roi", "value")
        return [n for n, v in self.others.items() if v.dtype == np.float32 and n not in settings]


def numbers(rng: random.Random, *shape: int) -> np.ndarray:
    """Draw whole numbers, which BF16 holds."""
    return np.random.default_rng(rng.getrandbits(32)).integers(-3, 4, shape).astype(np.float32)


def _padding(rng: random.Random, rank: int, most: int) -> dict[str, Any]:
    kind = rng.choice(["none", "pads", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"])
    if kind == "none":
        return {}
    if kind == "pads":
        return {"pads": [rng.randint(0, most) for _ in range(2 * rank)]}
    return {"auto_pad": kind}


def _steps(rng: random.Random, rank: int, name: str, most: int = 3) -> dict[str, Any]:
    return {name: [rng.randint(1, most) for _ in range(rank)]} if rng.random() < 0.6 else {}


def _window(rng: random.Random, rank: int) -> tuple[list[int], list[int]]:
    image = [rng.choice([1, 2, 3, 4, 5, 7, 8, 10]) for _ in range(rank)]
    return image, [rng.choice([1, 1, 2, 3, min(n, 4), n]) for n in image]


def convolution(rng: random.Random) -> Form:
    rank, group = rng.randint(1, 3), rng.choice([1, 1, 1, 2, 4])
    image, kernel = _window(rng, rank)
    inside, filters = rng.choice([1, 2, 3, 8, 16, 17]), group * rng.choice([1, 2, 4, 16])
    others = {"w": numbers(rng, filters, inside, *kernel)}
    if rng.random() < 0.3:
        others["b"] = numbers(rng, filters)
    attributes = {
        "group": group,
        **_padding(rng, rank, 4),
        **_steps(rng, rank, "strides"),
        **_steps(rng, rank, "dilations"),
    }
    if rng.random() < 0.7:
        attributes["kernel_shape"] = kernel
    return Form("Conv", (rng.randint(1, 4), group * inside, *image), others, attributes)


def transposed(rng: random.Random) -> Form:
    rank, group = rng.randint(1, 3), rng.choice([1, 1, 2, 4])
    image, kernel = _window(rng, rank)
    inside, outside = group * rng.choice([1, 2, 8, 16]), rng.choice([1, 2, 8, 16])
    others = {"w": numbers(rng, inside, outside, *kernel)}
    if rng.random() < 0.3:
        others["b"] = numbers(rng, outside * group)
    attributes = {
        "group": group,
        **_padding(rng, rank, 2),
        **_steps(rng, rank, "strides"),
        **_steps(rng, rank, "dilations"),
    }
    strides = attributes.get("strides", [1] * rank)
    if rng.random() < 0.4:
        attributes["output_padding"] = [
            rng.randint(0, max(max(n, m) - 1, 0))
            for n, m in zip(strides, attributes.get("dilations", [1] * rank), strict=True)
        ]
    if rng.random() < 0.2:
        attributes.pop("pads", None)
        attributes["output_shape"] = [n * s + rng.randint(0, 2) for n, s in zip(image, strides, strict=True)]
    return Form("ConvTranspose", (rng.randint(1, 3), inside, *image), others, attributes)


def pool(rng: random.Random) -> Form:
    op = rng.choice(["MaxPool", "AveragePool", "LpPool"])
    rank = rng.randint(1, 3)
    image, kernel = _window(rng, rank)
    attributes = {"kernel_shape": kernel, **_steps(rng, rank, "strides"), **_padding(rng, rank, 2)}
    if rng.random() < 0.4 and "SAME" not in attributes.get("auto_pad", ""):  # ONNX Runtime leaves them out
        attributes |= _steps(rng, rank, "dilations")
    if rng.random() < 0.4:
        attributes["ceil_mode"] = rng.randint(0, 1)
    outputs = 1
    if op == "AveragePool" and rng.random() < 0.6:
        attributes["count_include_pad"] = rng.randint(0, 1)
    if op == "LpPool" and rng.random() < 0.6:
        attributes["p"] = rng.randint(1, 3)
    if op == "MaxPool":
        outputs = rng.choice([1, 2])
        if rng.random() < 0.2:
            attributes["storage_order"] = 1
    opset = (
        rng.choice([OPSET, OPSET, OPSET, 19, 11, 7]) if op != "LpPool" else rng.choice([OPSET, OPSET, 18, 11])
    )
    if opset < 10:
        for name in ("dilations", "ceil_mode"):
            attributes.pop(name, None)
    if (opset < 19 and op == "AveragePool") or (opset < 18 and op == "LpPool"):
        attributes.pop("dilations", None)
    if opset < 18 and op == "LpPool":
        attributes.pop("ceil_mode", None)
    return Form(op, (rng.randint(1, 3), rng.choice([1, 3, 8, 16]), *image), {}, attributes, outputs, opset)


def resize(rng: random.Random) -> Form:
    rank = rng.randint(1, 3)
    image = [rng.choice([1, 2, 3, 5, 8]) for _ in range(rank)]
    mode = rng.choice(["nearest", "linear", "cubic"])
    attributes: dict[str, Any] = {"mode": mode}
    attributes["coordinate_transformation_mode"] = rng.choice(_COORDINATES)
    if mode == "nearest":
        attributes["nearest_mode"] = rng.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if mode == "cubic":
        attributes["cubic_coeff_a"] = rng.choice([-0.75, -0.5])
        attributes["exclude_outside"] = rng.randint(0, 1)
    if rng.random() < 0.15:
        attributes["antialias"] = 1
    data = (rng.randint(1, 3), rng.choice([1, 3]), *image)
    axes = list(range(2, 2 + rank)) if rng.random() < 0.4 else None
    n = rank if axes else rank + 2
    others: dict[str, np.ndarray] = {}
    if axes:
        attributes["axes"] = axes
    roi = ""
    if attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
        start = [0.0 if axes is None and k < 2 else round(rng.uniform(0, 0.4), 2) for k in range(n)]
        end = [1.0 if axes is None and k < 2 else round(rng.uniform(0.6, 1.2), 2) for k in range(n)]
        others["roi"], roi = np.array([*start, *end], np.float32), "roi"
        attributes["extrapolation_value"] = rng.choice([0.0, 2.0])
    factors = [rng.choice([0.5, 0.6, 1.0, 1.5, 2.0, 3.0]) for _ in range(rank)]
    if rng.random() < 0.5:
        others["scales"] = np.array(factors if axes else [1, 1, *factors], np.float32)
        inputs = ("x", roi, "scales")
    else:
        sizes = [max(1, int(f * m)) for f, m in zip(factors, image, strict=True)]
        others["sizes"] = np.array(sizes if axes else [*data[:2], *sizes], np.int64)
        if axes and rng.random() < 0.3:
            attributes["keep_aspect_ratio_policy"] = rng.choice(["stretch", "not_larger", "not_smaller"])
        inputs = ("x", roi, "", "sizes")
    return Form("Resize", data, others, attributes, positions=inputs, opset=rng.choice([19, 18]))


def pad(rng: random.Random) -> Form:
    rank = rng.randint(1, 4)
    data = tuple(rng.randint(2, 6) for _ in range(rank))
    mode = rng.choice(["constant", "edge", "reflect", "wrap"])
    axes = sorted(rng.sample(range(rank), rng.randint(1, rank))) if rng.random() < 0.4 else None
    n = len(axes) if axes else rank
    low = -1 if rng.random() < 0.3 else 0
    others: dict[str, np.ndarray] = {
        "pads": np.array([rng.randint(low, 1 if mode == "reflect" else 2) for _ in range(2 * n)], np.int64)
    }
    inputs = ["x", "pads"]
    if axes:
        others["axes"] = np.array([a - rank if rng.random() < 0.3 else a for a in axes], np.int64)
    value = ""
    if mode == "constant" and rng.random() < 0.5:
        others["value"], value = np.array(rng.choice([1.0, -2.0]), np.float32), "value"
    if axes:
        inputs += [value, "axes"]
    elif value:
        inputs.append(value)
    return Form(
        "Pad", data, others, {"mode": mode}, positions=tuple(inputs), opset=OPSET if mode != "wrap" else 21
    )


def normalization(rng: random.Random) -> Form:
    op = rng.choice(_NORMALIZATIONS)
    rank = rng.randint(1, 3)
    channels = rng.choice([1, 2, 4, 6])
    data = (rng.randint(1, 4), channels, *(rng.randint(1, 5) for _ in range(rank)))
    scale = np.arange(1, channels + 1, dtype=np.float32) / 2
    attributes: dict[str, Any] = {}
    if (
        op in ("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LayerNormalization")
        and rng.random() < 0.5
    ):
        attributes["epsilon"] = rng.choice([1e-3, 1e-1])
    if op == "BatchNormalization":
        attributes |= {"training_mode": rng.randint(0, 1)}
        if rng.random() < 0.5:
            attributes["momentum"] = 0.5
        others = {"s": scale, "b": scale - 1, "m": scale * 0.5, "v": scale + 1}
        return Form(
            op, data, others, attributes, outputs=rng.choice([1, 3]) if attributes["training_mode"] else 1
        )
    if op == "InstanceNormalization":
        return Form(op, data, {"s": scale, "b": scale - 1}, attributes)
    if op == "GroupNormalization":
        group = rng.choice([g for g in (1, 2, 3, 6) if channels % g == 0])
        attributes["num_groups"] = group
        opset = rng.choice([18, 21])
        n = channels if opset == 21 else group
        return Form(
            op,
            data,
            {"s": np.arange(1, n + 1, dtype=np.float32), "b": np.zeros(n, np.float32)},
            attributes,
            opset=opset,
        )
    if op in ("LayerNormalization", "RMSNormalization"):
        axis = rng.randint(-len(data), len(data) - 1)
        attributes["axis"] = axis
        shape = data[axis % len(data) :]
        if rng.random() < 0.3:
            shape = tuple(1 if rng.random() < 0.4 else n for n in shape)
        others = {"s": numbers(rng, *shape)}
        if op == "LayerNormalization" and rng.random() < 0.5:
            others["b"] = numbers(rng, *shape)
        return Form(
            op,
            data,
            others,
            attributes,
            outputs=rng.choice([1, 3]) if op[0] == "L" else 1,
            opset=23 if op[0] == "R" else 17,
        )
    if op == "LpNormalization":
        return Form(op, data, {}, {"axis": rng.randint(-len(data), len(data) - 1), "p": rng.randint(1, 2)})
    if op == "MeanVarianceNormalization":
        axes = sorted(rng.sample(range(len(data)), rng.randint(1, len(data))))
        return Form(op, data, {}, {"axes": axes} if rng.random() < 0.7 else {})
    if op == "LRN":
        return Form(
            op,
            data,
            {},
            {
                "size": rng.choice([1, 2, 3, 5]),
                "alpha": 0.1,
                "beta": rng.choice([0.5, 0.75]),
                "bias": rng.choice([1.0, 2.0]),
            },
        )
    return Form(op, data, {}, {"axis": rng.randint(-len(data), len(data) - 1)}, opset=rng.choice([13, 11]))


def _cell(rng: random.Random, op: str, d: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if rng.random() < 0.25:
        attributes["clip"] = 0.5
    if op == "GRU":
        attributes["linear_before_reset"] = rng.randint(0, 1)
    if op == "LSTM" and rng.random() < 0.2:
        attributes["input_forget"] = 1
    if rng.random() < 0.25:
        kinds = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}[op]
        kinds = [rng.choice(["Relu", "Tanh", "Sigmoid", "HardSigmoid", "Softsign", k]) for k in kinds]
        attributes["activations"] = kinds * d
    return attributes


def recurrent(rng: random.Random) -> Form:
    op = rng.choice(["RNN", "GRU", "LSTM"])
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    direction = rng.choice(["forward", "reverse", "bidirectional"])
    d = 2 if direction == "bidirectional" else 1
    time, batch, inside, hidden = rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 4), rng.randint(1, 4)
    attributes = {"hidden_size": hidden, "direction": direction, **_cell(rng, op, d)}
    layout = 1 if rng.random() < 0.15 else 0
    if layout:
        attributes["layout"] = 1

    def small(*shape):
        return numbers(rng, *shape) / 4

    others = {"w": small(d, gates * hidden, inside), "r": small(d, gates * hidden, hidden)}
    inputs = ["x", "w", "r", "", "", "", "", ""]
    if rng.random() < 0.5:
        others["b"], inputs[3] = small(d, 2 * gates * hidden), "b"
    if rng.random() < 0.35:
        others["lengths"], inputs[4] = (
            np.array([rng.randint(1, time) for _ in range(batch)], np.int32),
            "lengths",
        )
    state = (batch, d, hidden) if layout else (d, batch, hidden)
    if rng.random() < 0.4:
        others["h"], inputs[5] = small(*state), "h"
    if op == "LSTM" and rng.random() < 0.4:
        others["c"], inputs[6] = small(*state), "c"
    if op == "LSTM" and rng.random() < 0.15:
        others["p"], inputs[7] = small(d, 3 * hidden), "p"
    while inputs[-1] == "":
        inputs.pop()
    data = (batch, time, inside) if layout else (time, batch, inside)
    return Form(
        op,
        data,
        others,
        attributes,
        outputs=rng.choice([1, 2, 3 if op == "LSTM" else 2]),
        positions=tuple(inputs),
        opset=14,
    )


def average(rng: random.Random) -> Form:
    rank = rng.randint(1, 3)
    kernel = [rng.randint(1, 4) for _ in range(rank)]
    image = [rng.randint(k, 9) for k in kernel]
    attributes = {
        "kernel_shape": kernel,
        "strides": [rng.randint(1, 3) for _ in range(rank)],
        "ceil_mode": rng.randint(0, 1),
        "count_include_pad": rng.randint(0, 1),
    }
    if rng.random() < 0.3:
        attributes["auto_pad"] = rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    else:
        attributes["pads"] = [rng.randint(0, k - 1) for _ in range(2) for k in kernel]
    opset = rng.choice([22, 19, 11, 10])
    if opset >= 19 and "pads" in attributes and rng.random() < 0.3:
        attributes["dilations"] = [rng.randint(1, 2) for _ in range(rank)]
    return Form("AveragePool", (rng.randint(1, 2), rng.choice([1, 3, 16]), *image), {}, attributes, 1, opset)


FAMILIES: tuple[Callable[[random.Random], Form], ...] = (
    convolution,
    transposed,
    pool,
    resize,
    pad,
    normalization,
    recurrent,
    average,
)
