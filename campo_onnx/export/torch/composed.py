"""Operations of torch that ONNX lacks, written with those it has; autograd has been there before."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from campo_onnx.export import special

aten = torch.ops.aten

_LONGEST_RUN = 512
"""Elements of a running sum of exponentials, or of a running maximum: each is computed anew."""


def _logarithm(base: float, x: torch.Tensor) -> torch.Tensor:
    """Compute in double: of a power of the base it is whole, and may be rounded down."""
    return (x.double().log() / math.log(base)).to(x.dtype)


def _without_nan(choose: Callable[..., torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, choose(x, y)))


def _logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    if x.dim() == 0:
        return x.clone()
    if x.shape[dim] > _LONGEST_RUN:
        return NotImplemented
    rows, upto, _ = _runs(x, dim)
    return torch.where(upto, rows, -math.inf).logsumexp(-1).movedim(-1, dim)


def _runs(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Give all elements beside each, on a last axis; which are not behind it; and their places."""
    place = torch.arange(x.shape[dim], device=x.device)
    return x.movedim(dim, -1).unsqueeze(-2), place.unsqueeze(0) <= place.unsqueeze(1), place


def _running_extreme(sign: int, x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the extreme up to each element, and the last of equal ones; NaN stays from the first on."""
    if x.dim() == 0 or x.shape[dim] > _LONGEST_RUN or not x.is_floating_point():
        return NotImplemented
    rows, upto, place = _runs(x * sign, dim)
    seen = torch.where(upto, rows, -math.inf)
    values = seen.amax(-1, keepdim=True)
    is_last = upto & ((seen == values) | seen.isnan())
    places = torch.where(is_last, place, 0).amax(-1).movedim(-1, dim)
    return values.squeeze(-1).movedim(-1, dim) * sign, places


def _eye(rows: int, columns: int, **settings: Any) -> torch.Tensor:
    dtype, device = settings.get("dtype") or torch.get_default_dtype(), settings.get("device")
    down, across = (torch.arange(n, device=device) for n in (rows, columns))
    return (down.unsqueeze(1) == across.unsqueeze(0)).to(dtype)


def _shifted_left(x: torch.Tensor, count: Any) -> torch.Tensor:
    return x * _powers_of_two(x, count)


def _shifted_right(x: torch.Tensor, count: Any) -> torch.Tensor:
    return torch.div(x, _powers_of_two(x, count), rounding_mode="floor")


def _powers_of_two(x: torch.Tensor, count: Any) -> Any:
    return torch.pow(2, count).to(x.dtype) if isinstance(count, torch.Tensor) else 2**count


def _unfold(x: torch.Tensor, dim: int, size: int, step: int) -> torch.Tensor:
    if x.dim() == 0:
        return x.reshape(1) if size else x.new_empty((0,))
    dim %= x.dim()
    count = (x.shape[dim] - size) // step + 1
    place = torch.arange(count, device=x.device).unsqueeze(1) * step + torch.arange(size, device=x.device)
    windows = x.index_select(dim, place.reshape(-1))
    return windows.reshape(*x.shape[:dim], count, size, *x.shape[dim + 1 :]).movedim(dim + 1, -1)


def _hypot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    largest = torch.maximum(x.abs(), y.abs())
    scale = torch.where((largest == 0) | largest.isinf(), 1.0, largest)
    return ((x / scale).square() + (y / scale).square()).sqrt() * scale


def _kthvalue(
    x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    if x.dim() == 0:
        return NotImplemented
    both = torch.sort(x, dim)
    values, places = (part.narrow(dim, k - 1, 1) for part in both)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _max_unpool(
    axes: int, x: torch.Tensor, indices: torch.Tensor, output_size: Sequence[int], *_: Any
) -> torch.Tensor:
    """Write each image by itself: torch's decomposition lets an index that is too large reach the next."""
    rows, places = x.flatten(-axes), indices.flatten(-axes)
    empty = x.new_zeros((*rows.shape[:-1], math.prod(output_size)))
    return empty.scatter(-1, places, rows).unflatten(-1, list(output_size))


def _adaptive_max_pool(x: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    rank = len(sizes)
    places = torch.arange(math.prod(x.shape[-rank:])).reshape(x.shape[-rank:])
    values, indices = [], []
    for window in adaptive_windows(x.shape[-rank:], sizes):
        value, at = x[(..., *window)].flatten(-rank).max(-1)
        values.append(value)
        indices.append(places[window].flatten().index_select(0, at.flatten()).reshape(at.shape))
    both = (torch.stack(parts, -1).unflatten(-1, list(sizes)) for parts in (values, indices))
    return tuple(both)


def adaptive_windows(inputs: Sequence[int], outputs: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Give the window of each element that an adaptive pool makes."""
    spans = (
        [slice(i * n // size, -(-(i + 1) * n // size)) for i in range(size)]
        for n, size in zip(inputs, outputs, strict=True)
    )
    return itertools.product(*spans)


def _adaptive_max_pool_backward(
    rank: int, gradient: torch.Tensor, x: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    empty = torch.zeros_like(x).flatten(-rank)
    return empty.scatter_add(-1, indices.flatten(-rank), gradient.flatten(-rank)).reshape(x.shape)


def _nanmedian_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    if x.dim() == 0:
        return NotImplemented
    numbers = (~x.isnan()).sum(dim, keepdim=True)
    middle = (numbers - 1).clamp_min(0) // 2  # NaN is sorted to the end
    value, place = (part.gather(dim, middle) for part in torch.sort(x, dim))
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def _median_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the middle element, of an even number the lower one; NaN where there is one."""
    dim = dim % x.dim() if x.dim() else 0
    both = torch.sort(x.reshape(1) if x.dim() == 0 else x, dim)
    middle, last = ([part.select(dim, at) for part in both] for at in ((both[0].shape[dim] - 1) // 2, -1))
    if x.is_floating_point():
        middle = [torch.where(last[0].isnan(), a, b) for a, b in zip(last, middle, strict=True)]
    value, place = (y.unsqueeze(dim) if keepdim and x.dim() else y for y in middle)
    return value, place


def _diagonal(x: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    matrices = x.movedim((dim1, dim2), (-2, -1))
    return matrices.flatten(-2)[..., _on_diagonal(matrices, offset)]


def _diagonal_scatter(
    x: torch.Tensor, source: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    matrices = x.movedim((dim1, dim2), (-2, -1))
    places = _on_diagonal(matrices, offset)
    flat = torch.slice_scatter(matrices.flatten(-2), source, -1, places.start, places.stop, places.step)
    return flat.reshape(matrices.shape).movedim((-2, -1), (dim1, dim2))


def _on_diagonal(matrices: torch.Tensor, offset: int) -> slice:
    """Give where a diagonal lies in the elements of a matrix: its step is constant."""
    rows, columns = matrices.shape[-2:]
    start = offset if offset >= 0 else -offset * columns
    count = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    return slice(start, start + count * (columns + 1), columns + 1)


def _masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Write the elements of `source`, in order, where the mask is true; too few are an index outside."""
    x, mask = torch.broadcast_tensors(x, mask)
    place = torch.where(mask.flatten(), mask.flatten().cumsum(0) - 1, 0)
    rows = source.flatten().index_select(0, place)
    return torch.where(mask, rows.reshape(x.shape), x)


def _masked_scatter_backward(
    gradient: torch.Tensor, mask: torch.Tensor, sizes: Sequence[int]
) -> torch.Tensor:
    """Move the elements where the mask is true to the front, in order; zeros follow."""
    hits, count = mask.expand(gradient.shape).flatten(), math.prod(sizes)
    place = torch.where(hits, hits.cumsum(0) - 1, count).clamp_max(count)  # one more for all others
    return gradient.new_zeros((count + 1,)).scatter(0, place, gradient.flatten())[:count].reshape(sizes)


def _soft_margin_loss_backward(
    gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int = 1
) -> torch.Tensor:
    """Give the slope without a difference from 1, of which nothing is left where a sample is certain."""
    margin = target * x
    small = torch.exp(-margin.abs())
    slope = -target * gradient * (torch.where(margin < 0, 1.0, small) / (1 + small))
    return slope / x.numel() if reduction == 1 else slope


def _signbit(x: torch.Tensor) -> torch.Tensor:
    return (x < 0) | ((x == 0) & (x.reciprocal() < 0)) if x.is_floating_point() else x < 0


def _copysign(x: torch.Tensor, y: Any) -> torch.Tensor:
    y = y if isinstance(y, torch.Tensor) else torch.full_like(x, y)
    one = torch.ones_like(x)
    return x.abs() * torch.where(_signbit(y), -one, one)  # ONNX Runtime's Where forgets the sign of a zero


def _trilinear(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor,
    expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int], summed: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:  # fmt: skip
    for operand, dims in ((0, expand1), (1, expand2), (2, expand3)):
        for dim in dims:
            x, y, z = (t.unsqueeze(dim) if i == operand else t for i, t in enumerate((x, y, z)))
    return (x * y * z).sum(list(summed)) if summed else x * y * z


def _quantized(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, low: int, high: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round to multiples of the scale within a range; the second result is where the gradient passes."""
    place = x * scale.reciprocal()
    is_whole = not zero_point.is_floating_point()
    place = place.round() + zero_point if is_whole else (place + zero_point).round()
    return (place.clamp(low, high) - zero_point) * scale, (place >= low) & (place <= high)


def _quantized_if_enabled(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    is_enabled: torch.Tensor,
    low: int,
    high: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    rounded, passes = _quantized(x, scale.reshape(()), zero_point.reshape(()), low, high)
    is_on = is_enabled.reshape(()) != 0
    return torch.where(is_on, rounded, x), passes | ~is_on


def _quantized_per_channel(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, low: int, high: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return _quantized(x, _along_channels(x, scale, axis), _along_channels(x, zero_point, axis), low, high)


def _along_channels(x: torch.Tensor, numbers: torch.Tensor, axis: int | None) -> torch.Tensor:
    """Lay a number for each channel, or one for all, along an axis of `x`."""
    return numbers.reshape([-1 if i == axis else 1 for i in range(x.dim())])


def _learnable(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int | None, low: int, high: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Give a scale, a zero point, and the whole numbers to which they round, as they are and clamped."""
    scale, zero_point = (_along_channels(x, each, axis) for each in (scale, zero_point))
    zero_point = zero_point.clamp(low, high)
    place = (x * scale.reciprocal()).round() + zero_point
    return scale, zero_point, place, place.clamp(low, high)


def _learnable_quantized(
    x: torch.Tensor, scale: Any, zero_point: Any, low: int, high: int, _: float = 1.0, *,
    axis: int | None = None,
) -> torch.Tensor:  # fmt: skip
    scale, zero_point, _, place = _learnable(x, scale, zero_point.round(), axis, low, high)
    return (place - zero_point) * scale


def _learnable_quantized_backward(
    gradient: torch.Tensor, x: torch.Tensor, scale: Any, zero_point: Any, low: int, high: int,
    factor: float = 1.0, *, axis: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    # As torch does it: of a whole tensor not to the nearest where the zero point is negative or halfway.
    whole = (zero_point + 0.5).trunc() if axis is None else zero_point.round()
    step, zero, unclamped, place = _learnable(x, scale, whole, axis, low, high)
    passes = unclamped == place
    by_step = torch.where(passes, ((place - zero) * step - x) * step.reciprocal(), place - zero)
    by_zero = torch.where(passes, 0, -step)
    others = [i for i in range(x.dim()) if i != axis]
    by_scale, by_zero_point = ((gradient * slope * factor).sum(others) for slope in (by_step, by_zero))
    return gradient * passes, by_scale.reshape(scale.shape), by_zero_point.reshape(zero_point.shape)


def _along(operation: Callable[..., Any], behind: int = 3) -> Callable[..., Any]:
    """Give an operation that has its axis behind so many tensors."""
    return lambda *args: operation(*args[:behind], *args[behind + 1 :], axis=args[behind])


def _in_double(function: Callable[..., Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: function(torch, x.double()).to(x.dtype)


_lgamma, _digamma, _trigamma = map(_in_double, (special.lgamma, special.digamma, special.trigamma))


def _repeated(counts: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """Say which row each result repeats; a row that there is not where counts sum up to another length."""
    if output_size is None:
        return NotImplemented
    sums = counts.cumsum(0)
    rows = torch.searchsorted(sums, torch.arange(output_size), right=True)
    return torch.where(sums[-1:] > output_size, counts.shape[0], rows)


def _angle(x: torch.Tensor) -> torch.Tensor:
    return NotImplemented if x.is_complex() else torch.where(x.isnan(), x, torch.where(x < 0, math.pi, 0.0))


def _polygamma(n: int, x: torch.Tensor) -> torch.Tensor:
    return (_digamma, _trigamma)[n](x) if n < 2 else NotImplemented


OPERATIONS: Mapping[Any, Callable[..., Any]] = {
    aten._is_all_true.default: torch.all,
    aten._is_any_true.default: torch.any,
    aten._efficientzerotensor.default: torch.zeros,
    aten._neg_view.default: torch.neg,
    aten._trilinear.default: _trilinear,
    aten.__lshift__.Scalar: _shifted_left,
    aten.__lshift__.Tensor: _shifted_left,
    aten.__rshift__.Scalar: _shifted_right,
    aten.__rshift__.Tensor: _shifted_right,
    aten.adaptive_max_pool2d.default: _adaptive_max_pool,
    aten.adaptive_max_pool2d_backward.default: partial(_adaptive_max_pool_backward, 2),
    aten.adaptive_max_pool3d.default: _adaptive_max_pool,
    aten.adaptive_max_pool3d_backward.default: partial(_adaptive_max_pool_backward, 3),
    aten.angle.default: _angle,
    aten.atan2.default: partial(special.atan2, torch),
    aten.bitwise_left_shift.Tensor: _shifted_left,
    aten.bitwise_right_shift.Tensor: _shifted_right,
    aten.copysign.Scalar: _copysign,
    aten.copysign.Tensor: _copysign,
    aten.cummax.default: partial(_running_extreme, 1),
    aten.cummin.default: partial(_running_extreme, -1),
    aten.diagonal.default: _diagonal,
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.dist.default: lambda x, y, p=2: torch.linalg.vector_norm(x - y, p),
    aten.eye.default: lambda n, **settings: _eye(n, n, **settings),
    aten.fake_quantize_per_channel_affine_cachemask.default: _quantized_per_channel,
    aten.fake_quantize_per_tensor_affine_cachemask.default: lambda x, scale, zero_point, *bounds: _quantized(
        x, torch.full((), scale, dtype=x.dtype), torch.full((), zero_point), *bounds
    ),
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _quantized_if_enabled,
    aten._fake_quantize_learnable_per_channel_affine.default: _along(_learnable_quantized),
    aten._fake_quantize_learnable_per_channel_affine_backward.default: _along(
        _learnable_quantized_backward, behind=4
    ),
    aten._fake_quantize_learnable_per_tensor_affine.default: _learnable_quantized,
    aten._fake_quantize_learnable_per_tensor_affine_backward.default: _learnable_quantized_backward,
    aten.exp2.default: partial(torch.pow, 2.0),
    aten.eye.m: _eye,
    aten.addbmm.default: lambda x, a, b, *, beta=1, alpha=1: beta * x + alpha * (a @ b).sum(0),
    aten.addmv.default: lambda x, matrix, vector, *, beta=1, alpha=1: beta * x + alpha * (matrix @ vector),
    aten.hypot.default: _hypot,
    aten.kthvalue.default: _kthvalue,
    aten.fmax.default: partial(_without_nan, torch.maximum),
    aten.fmin.default: partial(_without_nan, torch.minimum),
    aten.log10.default: partial(_logarithm, 10),
    aten.log2.default: partial(_logarithm, 2),
    aten.logcumsumexp.default: _logcumsumexp,
    aten.masked_scatter.default: _masked_scatter,
    aten.masked_scatter_backward.default: _masked_scatter_backward,
    aten.max_unpool2d.default: partial(_max_unpool, 2),
    aten.max_unpool3d.default: partial(_max_unpool, 3),
    aten.median.default: lambda x: _median_dim(x.reshape(-1), 0)[0],
    aten.median.dim: _median_dim,
    aten.nanmedian.default: lambda x: _nanmedian_dim(x.reshape(-1), 0)[0],
    aten.nanmedian.dim: _nanmedian_dim,
    aten.repeat_interleave.Tensor: _repeated,
    aten.round.decimals: lambda x, *, decimals: (x * 10.0**decimals).round() / 10.0**decimals,
    aten.signbit.default: _signbit,
    aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
    aten.unfold.default: _unfold,
    aten.digamma.default: _digamma,
    aten.erfc.default: _in_double(special.erfc),
    aten.erfinv.default: _in_double(special.erfinv),
    aten.i0.default: _in_double(partial(special.bessel, 0, False)),
    aten.lgamma.default: _lgamma,
    aten.polygamma.default: _polygamma,
    aten.special_erfcx.default: _in_double(special.erfcx),
    aten.special_i0e.default: _in_double(partial(special.bessel, 0, True)),
    aten.special_i1.default: _in_double(partial(special.bessel, 1, False)),
    aten.special_i1e.default: _in_double(partial(special.bessel, 1, True)),
    aten.special_ndtri.default: _in_double(special.ndtri),
}
