"""Functions and operations taken apart before they are translated, where torch itself does not do it.

The first are rewritten as they are called, so that autograd differentiates the parts. The second are
operations that autograd made.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn import _reduction
from torch.utils._pytree import tree_map_only

from campo_onnx.export.torch import composed, packed, strided

aten = torch.ops.aten


def _cdist(x1: torch.Tensor, x2: torch.Tensor, p: float = 2.0, compute_mode: str = "") -> torch.Tensor:
    # Of several largest differences each has the whole gradient, and not its share; a count has one of zero.
    if math.isinf(p) or p == 0:
        return torch.cdist(x1, x2, p)
    return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)


def _pdist(x: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    first, second = torch.triu_indices(len(x), len(x), 1)
    return _cdist(x[first].unsqueeze(-2), x[second].unsqueeze(-2), p).flatten()


def _multilabel_margin(
    input: torch.Tensor,
    target: torch.Tensor,
    size_average: Any = None,
    reduce: bool | None = None,
    reduction: str | int = "mean",
) -> torch.Tensor:
    """Sum the margins of the targets before the first negative one; torch's decomposition adds others."""
    rows, targets = (x.reshape(1, -1) if x.dim() < 2 else x for x in (input, target))
    labels = torch.arange(-1, rows.shape[1], device=targets.device)
    targets = labels.index_select(0, targets.flatten() + 1).reshape(targets.shape)  # others are an error
    counts = (targets < 0).cumsum(1) == 0
    index = torch.where(counts, targets, 0)
    others = torch.zeros_like(targets).scatter_add(1, index, counts.to(targets.dtype)) == 0
    margins = (1 - rows.gather(1, index).unsqueeze(2) + rows.unsqueeze(1)).clamp_min(0)
    losses = torch.where(counts.unsqueeze(2) & others.unsqueeze(1), margins, 0).sum((1, 2)) / rows.shape[1]
    return _reduced(losses.reshape(input.shape[:-1]), size_average, reduce, reduction)


def _multi_margin(
    input: torch.Tensor,
    target: torch.Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: torch.Tensor | None = None,
    size_average: Any = None,
    reduce: bool | None = None,
    reduction: str | int = "mean",
) -> torch.Tensor:
    rows, labels = (input.reshape(1, -1), target.reshape(1)) if input.dim() < 2 else (input, target)
    is_other = labels.unsqueeze(1) != torch.arange(rows.shape[1], device=rows.device)
    margins = F.relu(margin - rows.gather(1, labels.unsqueeze(1)) + rows)
    losses = (torch.where(is_other, margins, 0) ** p).sum(1) / rows.shape[1]
    if weight is not None:
        losses = losses * weight.index_select(0, labels)
    return _reduced(losses.reshape(target.shape), size_average, reduce, reduction)


def _reduced(losses: torch.Tensor, size_average: Any, reduce: bool | None, reduction: Any) -> torch.Tensor:
    """Reduce the losses of rows as the arguments say, those of torch in Python or in C++."""
    if isinstance(size_average, int) and not isinstance(size_average, bool):  # how torch's C++ is called
        reduction = ("none", "mean", "sum")[size_average]
    elif size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce, False)
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def _grid_sample(
    input: torch.Tensor,
    grid: torch.Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> torch.Tensor:
    """Sample an image or a volume at any places, as a weighted sum of lookups."""
    is_cubic = mode == "bicubic"
    if padding_mode not in ("zeros", "border") or (is_cubic and input.dim() != 4):
        return torch.grid_sampler(
            input,
            grid,
            ("bilinear", "nearest", "bicubic").index(mode),
            ("zeros", "border", "reflection").index(padding_mode),
            bool(align_corners),
        )
    places = []
    for axis, size in enumerate(reversed(input.shape[2:])):
        place = (
            (grid[..., axis] + 1) / 2 * (size - 1)
            if align_corners
            else ((grid[..., axis] + 1) * size - 1) / 2
        )
        if padding_mode == "border" and not is_cubic:
            # On the border itself torch's gradient is zero, that of clamp is not.
            inside = (place > 0) & (place < size - 1)
            place = torch.where(inside, place, place.detach().clamp(0, size - 1))
        places.append(place)
    if mode == "nearest":
        # The grid has a gradient, which is zero: weights behind it decay all the same.
        nothing = grid.masked_fill(torch.ones((), dtype=torch.bool), 0).sum(-1)
        return _looked_up(input, [place.round().detach() for place in places]) + nothing.unsqueeze(1)
    total = torch.zeros((), dtype=input.dtype)
    for taps in itertools.product(*((_cubic if is_cubic else _linear)(place) for place in places)):
        weight = math.prod(weight for _, weight in taps)
        total = total + _looked_up(input, [at for at, _ in taps], padding_mode) * weight.unsqueeze(1)
    return total


def _linear(place: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Give the pixels beside a place with their weights."""
    # Not by absolute values, whose slope is zero where a place is a whole pixel.
    left = place.floor().detach()
    return [(left, left + 1 - place), (left + 1, place - left)]


def _cubic(place: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    left = place.floor().detach()
    t, a = place - left, -0.75  # torch's
    far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (t + 1, 2 - t)]
    near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
    return list(zip((left - 1, left, left + 1, left + 2), (far[0], *near, far[1]), strict=True))


def _looked_up(image: torch.Tensor, places: Sequence[torch.Tensor], padding: str = "zeros") -> torch.Tensor:
    """Look up elements at whole numbers; outside zero, or the next one inside."""
    inside, index = torch.ones_like(places[0], dtype=torch.bool), torch.zeros_like(places[0])
    for place, size in zip(reversed(places), image.shape[2:], strict=True):
        inside = inside & (place >= 0) & (place < size)
        index = index * size + place.clamp(0, size - 1)
    batch, channels = image.shape[:2]
    flat = index.long().reshape(batch, 1, -1).expand(batch, channels, -1)
    pixels = image.flatten(2).gather(2, flat).reshape(batch, channels, *index.shape[1:])
    return pixels if padding == "border" else pixels * inside.unsqueeze(1)


def _embedding_bag(
    input: torch.Tensor,
    weight: torch.Tensor,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor:
    """Look rows up, and combine those of a bag."""
    if input.dim() == 2:
        batch, length = input.shape
        bags, count = torch.arange(batch).unsqueeze(1).expand(batch, length).reshape(-1), batch
    else:
        assert offsets is not None  # torch asks for them
        starts = offsets[:-1] if include_last_offset else offsets
        count = starts.shape[0]
        bags = (torch.arange(input.shape[0]).unsqueeze(1) >= starts).sum(1) - 1
    index = input.reshape(-1)
    rows = F.embedding(
        index, weight, max_norm=max_norm, norm_type=norm_type, scale_grad_by_freq=scale_grad_by_freq
    )
    counts = torch.ones(index.shape, dtype=weight.dtype)
    if padding_idx is not None:
        counts = (index != padding_idx % weight.shape[0]).to(weight.dtype)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(-1, 1)
    wide = bags.unsqueeze(1).expand_as(rows)
    zeros = torch.zeros((count, rows.shape[1]), dtype=rows.dtype)
    if mode == "max":
        return _largest_of_bags(rows, wide, (counts > 0).unsqueeze(1), zeros)
    total = zeros.scatter_add(0, wide, rows * counts.unsqueeze(1))
    if mode == "sum":
        return total
    number = torch.zeros(count, dtype=rows.dtype).scatter_add(0, bags, counts)
    return total / number.clamp(min=1).unsqueeze(1)


def _largest_of_bags(
    rows: torch.Tensor, bags: torch.Tensor, counts: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """Take the largest element of each bag; of equal ones the first, which alone gets the gradient."""
    number = rows.shape[0]
    candidates = rows.detach().masked_fill(~counts, -math.inf)
    largest = zeros.scatter_reduce(0, bags, candidates, "amax", include_self=False)
    is_largest = (candidates == largest.gather(0, bags)) & counts
    place = torch.arange(number).unsqueeze(1).expand_as(rows)
    place = torch.where(is_largest, place, number)
    first = torch.full(zeros.shape, number).scatter_reduce(0, bags, place, "amin")
    maxima = rows.gather(0, first.clamp(max=number - 1))
    return torch.where(first < number, maxima, zeros)


def _adaptive_max_pool(
    rank: int, input: torch.Tensor, output_size: Any, return_indices: bool = False
) -> torch.Tensor:
    sizes, wanted = input.shape[-rank:], _wanted(rank, input, output_size)
    if all(n % size == 0 for n, size in zip(sizes, wanted, strict=True)):
        pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
        return pool(input, [n // size for n, size in zip(sizes, wanted, strict=True)])
    windows = composed.adaptive_windows(sizes, wanted)
    return torch.stack([input[(..., *w)].flatten(-rank).max(-1)[0] for w in windows], -1).unflatten(
        -1, wanted
    )


def _adaptive_avg_pool(
    rank: int, operation: Callable[..., torch.Tensor], input: torch.Tensor, output_size: Any
) -> torch.Tensor:
    # To one number torch itself takes the mean, but lays it out as the image, which has no parts.
    wanted = _wanted(rank, input, output_size)
    if all(size == 1 for size in wanted):
        return input.mean(list(range(-rank, 0)), keepdim=True)
    return operation(input, wanted)


def _wanted(rank: int, input: torch.Tensor, output_size: Any) -> list[int]:
    """Give the sizes of an adaptive pool's result; None stands for the input's."""
    sizes = [output_size] * rank if isinstance(output_size, int | None) else list(output_size)
    return [n if size is None else size for n, size in zip(input.shape[-rank:], sizes, strict=True)]


def _fill_diagonal(input: torch.Tensor, fill_value: float, wrap: bool = False) -> torch.Tensor:
    """Write to the elements whose places are the same on all axes, by a mask."""
    rank = input.dim()
    if rank < 2 or (wrap and not input.is_contiguous()) or (rank > 2 and len(set(input.shape)) > 1):
        return aten.fill_diagonal_(input, fill_value, wrap)
    places = [torch.arange(n).reshape(-1, *[1] * (rank - 1 - axis)) for axis, n in enumerate(input.shape)]
    rows = places[0] % (input.shape[1] + 1) if wrap and rank == 2 else places[0]
    mask = rows == places[1]
    for place in places[2:]:
        mask = mask & (rows == place)
    return input.masked_fill_(mask, fill_value)


def _histc(input: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """Count the elements in each of `bins` intervals; those outside are not counted."""
    if min == max:
        return aten.histc(input, bins, min, max)
    x = input.reshape(-1)
    place = ((x - min) / (max - min) * bins).floor().clamp(max=bins - 1)
    inside = (x >= min) & (x <= max)
    return ((place.unsqueeze(1) == torch.arange(bins)) & inside.unsqueeze(1)).sum(0).to(input.dtype)


def bincount(input: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """Count whole numbers below `minlength`: more of them would be a size that depends on data."""
    if minlength == 0:
        return aten.bincount(input, weights, minlength)
    counted = torch.ones_like(input, dtype=torch.int64) if weights is None else weights
    wide = counted if counted.dtype in (torch.int64, torch.float32) else counted.double()
    return torch.zeros(minlength, dtype=wide.dtype).scatter_add(0, input.long(), wide)


def _grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: Any = None,
) -> torch.Tensor:
    """Multiply rows by the matrix of their group: by all of them, since no size may depend on data."""
    if offs is None or mat_a.dim() != 2 or mat_b.dim() != 3 or bias is not None:
        return aten._grouped_mm(mat_a, mat_b, offs, bias, out_dtype)
    before = torch.cat([offs.new_zeros(1), offs[:-1]])
    row = torch.arange(mat_a.shape[0]).unsqueeze(0)
    own = ((row >= before.unsqueeze(1)) & (row < offs.unsqueeze(1))).to(mat_a.dtype)
    return (torch.matmul(mat_a.unsqueeze(0), mat_b) * own.unsqueeze(2)).sum(0)


def _gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """Compute the loss without torch's look at the data, which only raises where a variance is negative."""
    variance = torch.full_like(input, var) if isinstance(var, float) else var.clone()
    if variance.dim() == input.dim() - 1 and variance.shape == input.shape[:-1]:
        variance = variance.unsqueeze(-1)
    with torch.no_grad():
        variance.clamp_(min=eps)
    loss = 0.5 * (torch.log(variance) + (input - target) ** 2 / variance)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return {"mean": loss.mean, "sum": loss.sum}.get(reduction, loss.clone)()


def _list(x: torch.Tensor) -> Any:
    """Read one number after the other, as of fake tensors."""
    return [_list(part) for part in x.unbind()] if x.dim() else x.item()


def _cov(x: torch.Tensor, *, correction: int = 1, **weights: torch.Tensor | None) -> torch.Tensor:
    """Covariances of rows; torch's own looks at its weights to decide what to do."""
    if any(weight is not None for weight in weights.values()):
        return torch.cov(x, correction=correction, **weights)
    rows = x.reshape(1, -1) if x.dim() < 2 else x
    centered = rows - rows.mean(1, keepdim=True)
    return (centered @ centered.mT / max(rows.shape[1] - correction, 0)).squeeze()


def _corrcoef(x: torch.Tensor) -> torch.Tensor:
    covariances = _cov(x)
    if not covariances.dim():
        return covariances / covariances
    deviations = covariances.diagonal().sqrt()
    return (covariances / deviations.unsqueeze(1) / deviations).clamp(-1.0, 1.0)


def _nansum(x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    """Sum up what is a number. Of no axes torch traces the shape of none, where its kernel takes all."""
    return torch.where(x.isnan(), 0, x).sum(dim=dim, keepdim=keepdim, dtype=dtype)


def _nanmean(x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    return _nansum(x, dim, keepdim, dtype=dtype) / (~x.isnan()).sum(dim=dim, keepdim=keepdim)


FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    torch.cov: _cov,
    torch.Tensor.cov: _cov,
    torch.corrcoef: _corrcoef,
    torch.Tensor.corrcoef: _corrcoef,
    torch.Tensor.tolist: _list,
    F.adaptive_avg_pool1d: partial(_adaptive_avg_pool, 1, aten.adaptive_avg_pool1d),
    F.adaptive_avg_pool2d: partial(_adaptive_avg_pool, 2, aten._adaptive_avg_pool2d),
    F.adaptive_avg_pool3d: partial(_adaptive_avg_pool, 3, aten._adaptive_avg_pool3d),
    F.adaptive_max_pool1d: partial(_adaptive_max_pool, 1),
    F.adaptive_max_pool2d: partial(_adaptive_max_pool, 2),
    F.adaptive_max_pool3d: partial(_adaptive_max_pool, 3),
    F.embedding_bag: _embedding_bag,
    F.grid_sample: _grid_sample,
    torch._VF._pack_padded_sequence: packed.pack,
    F.gaussian_nll_loss: _gaussian_nll_loss,
    torch.bincount: bincount,
    torch.Tensor.bincount: bincount,
    torch.cdist: _cdist,
    torch.pdist: _pdist,
    F.multi_margin_loss: _multi_margin,
    torch._C._nn.multi_margin_loss: _multi_margin,
    F.multilabel_margin_loss: _multilabel_margin,
    torch._C._nn.multilabel_margin_loss: _multilabel_margin,
    torch.Tensor.fill_diagonal_: _fill_diagonal,
    torch.nansum: _nansum,
    torch.Tensor.nansum: _nansum,
    torch.nanmean: _nanmean,
    torch.Tensor.nanmean: _nanmean,
    torch.histc: _histc,
    torch.Tensor.histc: _histc,
    **packed.FUNCTIONS,
    **{
        getattr(owner, name): _grouped_mm
        for owner, name in ((torch, "_grouped_mm"), (F, "grouped_mm"))
        if hasattr(owner, name)
    },
}
"""Functions that are rewritten when they are called."""


def _weight_norm_backward(
    gradient: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    axes = [axis for axis in range(v.dim()) if axis != dim]
    moment = (gradient * v).sum(axes, keepdim=True) / norms
    return (g / norms) * (gradient - v * (moment / norms)), moment


def _in_order(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Let the results of a rule lie in order: views of them were traced of what torch's kernel gives."""

    def ordered(*args: Any, **kwargs: Any) -> Any:
        return tree_map_only(torch.Tensor, torch.Tensor.contiguous, rule(*args, **kwargs))

    return ordered


OPERATIONS: Mapping[Any, Callable[..., Any]] = {
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
    **strided.OPERATIONS,
    **{operation: _in_order(rule) for operation, rule in composed.OPERATIONS.items()},
}
"""Operations that are replaced by others in the graph."""
