"""CTC's loss over all alignments of a sequence with its labels, and drawing by weights, in parts."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

_NEVER = -1e30
"""A log-probability of zero; an infinity would have differences that are not numbers."""


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor | Sequence[int],
    target_lengths: torch.Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor:
    """Compute ``torch.nn.functional.ctc_loss`` step by step in time (Graves et al. 2006, Eqs. 5 to 8)."""
    if is_single := log_probs.dim() == 2:
        log_probs, targets = log_probs.unsqueeze(1), targets.unsqueeze(0)
    steps, rows, _ = log_probs.shape
    frames, counts = (torch.as_tensor(n).reshape(-1).expand(rows) for n in (input_lengths, target_lengths))
    labels = _extended(_in_rows(targets, counts, steps), counts, blank)
    emitted = log_probs.gather(2, labels.expand(steps, *labels.shape))
    differs = labels[:, 2:] != labels[:, :-2]
    skips = F.pad((labels[:, 2:] != blank) & differs, (2, 0))
    is_start = torch.arange(labels.shape[1]) < torch.where(counts > 0, 2, 1).unsqueeze(1)
    alpha, total = torch.where(is_start, emitted[0], _NEVER), torch.zeros(rows)
    for step in range(1, steps):
        from_last = F.pad(alpha, (1, 0), value=_NEVER)[:, :-1]
        from_before = torch.where(skips, F.pad(alpha, (2, 0), value=_NEVER)[:, :-2], _NEVER)
        reached = torch.stack([alpha, from_last, from_before]).logsumexp(0) + emitted[step]
        largest = reached.detach().amax(1)  # taken out, so that the sum keeps its digits
        runs = step < frames
        alpha = torch.where(runs.unsqueeze(1), reached - largest.unsqueeze(1), alpha)
        total = total + torch.where(runs, largest, 0)
    ends = torch.stack([2 * counts, (2 * counts - 1).clamp_min(0)], 1)
    last = alpha.gather(1, ends)
    last = torch.where(torch.stack([counts >= 0, counts > 0], 1), last, _NEVER)
    losses = _as_of_probabilities(-last.logsumexp(1) - total, log_probs, frames)
    impossible = losses > -_NEVER / 2
    if zero_infinity:
        losses = torch.where(impossible, 0.0, losses)
    else:
        losses = losses / (~impossible).to(losses.dtype)  # infinite, and so is the gradient
    if reduction == "mean":
        return (losses / counts.clamp_min(1)).mean()
    if reduction == "sum":
        return losses.sum()
    return losses.squeeze(0) if is_single else losses


def _in_rows(targets: torch.Tensor, counts: torch.Tensor, steps: int) -> torch.Tensor:
    """Lay labels of all rows, one after the other, out in rows; no row has more than there are steps."""
    if targets.dim() == 2:
        return targets
    place = (counts.cumsum(0) - counts).unsqueeze(1) + torch.arange(min(len(targets), steps))
    return targets[place.clamp_max(len(targets) - 1)]


def _extended(targets: torch.Tensor, counts: torch.Tensor, blank: int) -> torch.Tensor:
    """Put a blank around each label, and in place of labels behind the end of a row."""
    is_label = torch.arange(targets.shape[1]) < counts.unsqueeze(1)
    labels = torch.where(is_label, targets.long(), blank)
    pairs = torch.stack([labels, torch.full_like(labels, blank)], 2).flatten(1)
    return F.pad(pairs, (1, 0), value=blank)


def _as_of_probabilities(losses: torch.Tensor, log_probs: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
    """Add nothing, with the gradient that torch's has more: that of log-probabilities which sum up to 1."""
    runs = torch.arange(log_probs.shape[0]).unsqueeze(1) < frames
    mass = torch.where(runs.unsqueeze(2), log_probs.exp(), 0.0).sum((0, 2))
    return losses + (mass - mass.detach())


def multinomial(
    input: torch.Tensor, num_samples: int, replacement: bool = False, *, generator: None = None
) -> torch.Tensor:
    """Draw places by their weights: of all, the largest of weights over exponential numbers."""
    if replacement:
        upto = input.cumsum(-1)
        drawn = torch.rand(*input.shape[:-1], num_samples, 1) * upto[..., -1:].unsqueeze(-2)
        return (drawn >= upto.unsqueeze(-2)).sum(-1).clamp_max(input.shape[-1] - 1)
    return (input / -torch.rand_like(input).clamp(1e-30, 1 - 1e-7).log()).topk(num_samples).indices
