"""Weights in one buffer, which a training session casts at once where most of them are read low.

One Cast of the whole buffer then stands for those that the graph has for single weights.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

_FEWEST = 2  # one Cast is one Cast either way
_LEAST_SHARE = 0.5
"""Share of the buffer from which on it pays to cast all of it: a Cast takes its time by the byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatWeights:
    """The weights that lie in the buffer."""

    # Elements that each takes there, with what is left empty behind it, by name of the graph's input.
    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", MappingProxyType(dict(self.sizes)))

    @property
    def elements(self) -> int:
        """Elements of the buffer."""
        return sum(self.sizes.values())

    def are_cast_at_once(self, cast: Collection[str]) -> bool:
        """Whether one Cast of the buffer replaces those of some of the weights."""
        share = sum(self.sizes[name] for name in cast)
        return len(cast) >= _FEWEST and share >= _LEAST_SHARE * self.elements
