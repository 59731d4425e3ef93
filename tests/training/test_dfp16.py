"""Dynamic fixed point, bit by bit against integers of Python and NumPy."""

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from campo_onnx.emulation import dfp16
from campo_onnx.emulation.dfp16 import Rounding, emulate_dfp16
from campo_onnx.errors import UnsupportedModelError
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.registry import machine

Array = NDArray[Any]


def quantized(x: Array) -> tuple[Array, int]:
    """Eqs. 1 to 3: 64-bit integers, and the exponent that they share."""
    largest = float(np.abs(x).max(initial=0.0))
    exponent = (math.frexp(largest)[1] - 1 if largest else 0) - 14
    whole = [round(float(v) / 2.0**exponent) for v in x.ravel()]  # ties to even, exactly
    return np.clip(np.array(whole, np.int64), -(2**15), 2**15 - 1).reshape(x.shape), exponent


def value(x: Array) -> Array:
    integers, exponent = quantized(x)
    return (integers * 2.0**exponent).astype(np.float32)


def multiplied(a: Array, b: Array, chain: int, shift: int) -> Array:
    """Section 4.3 for matrices: sums of `chain` products in 32 bits, those in FP32."""
    (ia, ea), (ib, eb) = quantized(a), quantized(b)
    ia, ib = ia >> shift, ib >> shift
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for first in range(0, a.shape[1], chain):
        whole = ia[:, first : first + chain] @ ib[first : first + chain]
        wrapped = (whole + 2**31) % 2**32 - 2**31
        scaled = wrapped.astype(np.float32) * np.float32(2.0 ** (ea + eb + 2 * shift))
        total = (total + scaled).astype(np.float32)
    return total


def patches(x: Array, kernel: int, stride: int) -> Array:
    """Rows of an image's patches, channel by channel."""
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    views = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(2, 3))
    views = views[:, :, ::stride, ::stride]
    return views.transpose(0, 2, 3, 1, 4, 5).reshape(-1, x.shape[1] * kernel * kernel)


def step(body: str, inputs: str, outputs: str) -> onnx.ModelProto:
    model = f"""<ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]>
    g ({inputs}) => ({outputs}) {{ {body} }}"""
    return onnx.parser.parse_model(model)


def product(node: str, a: str, b: str, y: str, more: str = "") -> onnx.ModelProto:
    return step(
        f"""al = Cast <to = 10> (a)
        bl = Cast <to = 10> (b)
        yl = {node}
        y = Cast <to = 1> (yl)""",
        f"float[{a}] a, float[{b}] b{more}",
        f"float[{y}] y",
    )


def run_dfp16(
    model: onnx.ModelProto,
    feeds: dict[str, Array],
    *,
    chain: int = dfp16.CHAIN,
    shift: int = dfp16.SHIFT,
    **options: Any,
) -> dict[str, Array]:
    with patch.multiple(dfp16, CHAIN=chain, SHIFT=shift):
        fixed = emulate_dfp16(model, **options)
    onnx.checker.check_model(fixed, full_check=True)
    return run(fixed, feeds, machine("cpu", 1))


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


A, B = drawn(5, 600), drawn(600, 4, seed=1, scale=1e-6)
PLAIN = product("MatMul (al, bl)", "5,600", "600,4", "5,4")


@pytest.mark.parametrize(
    ("model", "first", "second", "expected"),
    [
        (PLAIN, A, B, lambda y: y),
        (product("Gemm <transA = 1, transB = 1> (al, bl)", "600,5", "4,600", "5,4"), A.T, B.T, lambda y: y),
        (
            product("com.microsoft.FusedMatMul <alpha = 0.3, transB = 1> (al, bl)", "5,600", "4,600", "5,4"),
            A,
            B.T,
            lambda y: y * np.float32(0.3),
        ),
    ],
)
@pytest.mark.parametrize(("chain", "shift"), [(256, 1), (1024, 0), (7, 3)])
def test_products_are_those_of_integers(
    model: onnx.ModelProto,
    first: Array,
    second: Array,
    expected: Callable[[Array], Array],
    chain: int,
    shift: int,
) -> None:
    feeds = {"a": np.ascontiguousarray(first), "b": np.ascontiguousarray(second)}
    actual = run_dfp16(model, feeds, chain=chain, shift=shift)["y"]
    np.testing.assert_array_equal(actual, expected(multiplied(A, B, chain, shift)))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_sums_whole_kernels(stride: int) -> None:
    x, w = drawn(2, 70, 6, 6), drawn(3, 70, 3, 3, seed=1)
    size = 6 // stride
    node = f"Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [{stride}, {stride}]> (al, bl, c)"
    model = product(node, "2,70,6,6", "3,70,3,3", f"2,3,{size},{size}", ", float16[3] d").SerializeToString()
    model = onnx.ModelProto.FromString(model)
    del model.graph.input[2]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float16), "c"))
    actual = run_dfp16(model, {"a": x, "b": w})["y"]
    # 28 channels of 9 products are a sum of 252.
    rows = multiplied(patches(x, 3, stride), w.reshape(3, -1).T, 28 * 9, 1) + np.float32(1)
    np.testing.assert_array_equal(actual, rows.reshape(2, size, size, 3).transpose(0, 3, 1, 2))


def test_a_transposed_convolution_is_the_transpose_of_one() -> None:
    """Each input position adds its kernel: as a product, the images of all unit vectors."""
    x, w = drawn(1, 40, 4, 4), drawn(40, 2, 3, 3, seed=1)
    model = product("ConvTranspose <kernel_shape = [3, 3]> (al, bl)", "1,40,4,4", "40,2,3,3", "1,2,6,6")
    actual = run_dfp16(model, {"a": x, "b": w})["y"]
    flipped = np.ascontiguousarray(w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3))
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))  # patches() pads by one more
    rows = multiplied(patches(wide, 3, 1), flipped.reshape(2, -1).T, 28 * 9, 1)
    np.testing.assert_array_equal(actual, rows.reshape(1, 6, 6, 2).transpose(0, 3, 1, 2))


def test_sums_that_are_too_long_wrap_around_in_32_bits() -> None:
    ones = {"a": np.ones((5, 600), np.float32), "b": np.ones((600, 4), np.float32)}
    actual = run_dfp16(PLAIN, ones, chain=512, shift=0)["y"]
    np.testing.assert_array_equal(actual, multiplied(ones["a"], ones["b"], 512, 0))
    assert (actual != 600).all()
    np.testing.assert_array_equal(run_dfp16(PLAIN, ones, shift=6)["y"], np.full((5, 4), 600, np.float32))


def test_what_goes_on_low_is_quantized_and_what_becomes_fp32_is_not() -> None:
    model = step(
        """al = Cast <to = 10> (a)
        bl = Cast <to = 10> (b)
        yl = MatMul (al, bl)
        rl = Relu (yl)
        r = Cast <to = 1> (rl)
        wl = MatMul (al, bl)
        tl = Transpose <perm = [1, 0]> (wl)
        w = Cast <to = 1> (tl)""",
        "float[5,600] a, float[600,4] b",
        "float[5,4] r, float[4,5] w",
    )
    outputs = run_dfp16(model, {"a": A, "b": B})
    exact = multiplied(A, B, 256, 1)
    np.testing.assert_array_equal(outputs["w"], exact.T)
    np.testing.assert_array_equal(outputs["r"], value(np.maximum(value(exact), 0)))
    assert (value(exact) != exact).any()


IDENTITY = step("al = Cast <to = 10> (a) y = Cast <to = 1> (al)", "float[N] a", "float[N] y")


@pytest.mark.parametrize(
    "values",
    [
        [0.0, 0.0],
        [1.0, -1.0, 2.0**-14, 2.0**-15, 3 * 2.0**-15],
        [np.nextafter(np.float32(2.0), np.float32(0.0)), -1.9999999, 0.3],
        [3.4e38, 1e30],
        [1e-40, 3e-42],
        [-7.0, 0.1],
    ],
)
def test_a_tensor_takes_the_exponent_of_its_largest_value(values: list[float]) -> None:
    a = np.array(values, np.float32)
    actual = run_dfp16(IDENTITY, {"a": a}, dims={"N": len(a)})["y"]
    np.testing.assert_array_equal(actual, value(a))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_has_no_exponent_spoils_the_tensor_and_what_is_made_of_it(bad: float) -> None:
    a = np.array([1.0, bad, 2.0], np.float32)
    assert np.isnan(run_dfp16(IDENTITY, {"a": a}, dims={"N": 3})["y"]).all()
    spoiled = A.copy()
    spoiled[2, 7] = bad
    assert np.isnan(run_dfp16(PLAIN, {"a": spoiled, "b": B})["y"]).all()


def test_stochastic_rounding_keeps_the_mean() -> None:
    a = np.full(20_000, 0.3, np.float32)
    a[0] = 1.0
    a[1:] *= np.float32(2.0**-12)
    values = run_dfp16(IDENTITY, {"a": a}, dims={"N": len(a)}, rounding=Rounding.STOCHASTIC)["y"][1:]
    assert set(np.unique(values)) == {np.float32(2.0**-14), np.float32(2.0**-13)}
    assert values.mean() == pytest.approx(a[1], rel=0.02)
    assert len(set(run_dfp16(IDENTITY, {"a": a}, dims={"N": len(a)})["y"][1:])) == 1


def test_what_cannot_be_had_is_refused() -> None:
    low_output = step("al = Cast <to = 10> (a) y = Relu (al)", "float[3] a", "float16[3] y")
    with pytest.raises(UnsupportedModelError, match="dynamic fixed point"):
        emulate_dfp16(low_output)
