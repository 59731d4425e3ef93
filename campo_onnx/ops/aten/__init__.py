"""Operators that ONNX Runtime hands back to PyTorch: the node is always ``ATen``, an attribute names them."""

from typing import Any

from onnx import TensorProto

from campo_onnx.ops.key import ATEN
from campo_onnx.ops.microsoft.boundary import FRAMEWORK
from campo_onnx.ops.signature import Shape, Signature, TensorType
from campo_onnx.ops.spec import Family, Like, OpSpec, specs
from campo_onnx.ops.work import Stream

_INT64 = int(TensorProto.INT64)


def _max_pool_2d_types(signature: Signature) -> list[TensorType]:
    """``max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil_mode)``."""
    x = signature.input(0)
    kernel, stride, padding, dilation, ceil = (signature.ints(index) for index in range(1, 6))
    if x.shape is None or kernel is None:
        return [TensorType(x.dtype), TensorType(_INT64)]
    window = zip(
        *(
            x.shape[-2:],
            _pair(kernel),
            _pair(stride or kernel),
            _pair(padding or (0,)),
            _pair(dilation or (1,)),
        ),
        strict=True,
    )
    pooled = (*x.shape[:-2], *(_pooled(*axis, ceil_mode=bool(ceil and ceil[0])) for axis in window))
    return [TensorType(x.dtype, pooled), TensorType(_INT64, pooled)]


def _pair(sizes: Shape) -> Shape:
    return sizes * 2 if len(sizes) == 1 else sizes


def _pooled(size: int, kernel: int, stride: int, padding: int, dilation: int, *, ceil_mode: bool) -> int:
    free = size + 2 * padding - dilation * (kernel - 1) - 1
    windows = (free + (stride - 1 if ceil_mode else 0)) // stride + 1
    # PyTorch drops a last window that would start in the padding on the right.
    return windows - 1 if ceil_mode and (windows - 1) * stride >= size + padding else windows


def _adaptive_avg_pool_2d_types(signature: Signature) -> list[TensorType]:
    x, size = signature.input(0), signature.ints(1)
    pooled = None if x.shape is None or size is None else (*x.shape[:-2], *_pair(size))
    return [TensorType(x.dtype, pooled)]


def _embedding_types(signature: Signature) -> list[TensorType]:
    weight, indices = signature.input(0), signature.input(1)
    if weight.shape is None or indices.shape is None:
        return [TensorType(weight.dtype)]
    return [TensorType(weight.dtype, (*indices.shape, *weight.shape[1:]))]


def _embedding_backward_types(signature: Signature) -> list[TensorType]:
    """``embedding_backward(grad, indices, num_weights, ...)``."""
    grad, rows = signature.input(0), signature.ints(2)
    return [TensorType(grad.dtype, (*rows, grad.shape[-1]) if rows and grad.shape else None)]


def _of_pytorch(names: str, family: Family, **facts: Any) -> tuple[OpSpec, ...]:
    """Operators that PyTorch computes, in the types that they are given."""
    return specs(ATEN, names, family, work=Stream(1), ports=FRAMEWORK, typed_by_declaration=True, **facts)


_GRADIENT_OF_SECOND = Like((1,))

SPECS = (
    *_of_pytorch("ATen", Family.BOUNDARY),  # any operator that is not below
    *_of_pytorch(
        "_adaptive_avg_pool2d adaptive_avg_pool2d", Family.POOLING, shapes=_adaptive_avg_pool_2d_types
    ),
    *_of_pytorch(
        "_adaptive_avg_pool2d_backward adaptive_avg_pool2d_backward max_pool2d_with_indices_backward",
        Family.POOLING,
        shapes=_GRADIENT_OF_SECOND,
    ),
    *_of_pytorch("max_pool2d_with_indices", Family.POOLING, shapes=_max_pool_2d_types),
    *_of_pytorch("embedding", Family.MOVEMENT, shapes=_embedding_types),
    *_of_pytorch("embedding_backward", Family.SCATTER, shapes=_embedding_backward_types),
)
