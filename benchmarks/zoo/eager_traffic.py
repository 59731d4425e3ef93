"""Launches and bytes of a step of torch eager, counted on the meta device: nothing is computed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from benchmarks.zoo.export import Entry

_OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters),
    "adamw": lambda parameters: torch.optim.AdamW(parameters),
}


class Count(TorchDispatchMode):
    """Counts operations that are more than a view, and the bytes of what they read and write.

    The rule is that of our own graphs: each tensor once. A kernel behind one operation may read its input
    more than once, and one operation may be more than one kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches, self.moved_bytes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func not in _NOTHING:
            read = {id(t): t for t in _tensors((args, kwargs))}
            written = {id(t): t for t in _tensors(result)}
            self.launches += 1
            self.moved_bytes += sum(t.nbytes for t in (*read.values(), *written.values()))
        return result


_NOTHING = frozenset(
    {torch.ops.aten.empty.memory_format, torch.ops.aten.detach.default, torch.ops.aten._unsafe_view.default}
)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


def eager_traffic(entry: "Entry", batch: int) -> dict[str, float]:
    """Count forward, backward and update of a model at a batch size."""
    with torch.device("meta"):
        module = entry.build()
    inputs, targets = ([t.to("meta") for t in part] for part in entry.batch(batch))
    optimizer = _OPTIMIZERS[entry.optimizer]([p for p in module.parameters() if p.requires_grad])
    count = Count()
    for _ in range(2):  # the first step makes the optimizer's state
        optimizer.zero_grad()
        with (count := Count()):
            entry.loss(module(*inputs), *targets).backward()
            optimizer.step()
    return {"launches": count.launches, "moved_bytes": count.moved_bytes}
