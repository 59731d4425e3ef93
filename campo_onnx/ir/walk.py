"""A walk through a graph, from what it begins with to whatever is added on the way."""

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Walk(Generic[T]):
    """Tensors, nodes or the like, each visited once: by how many ways one is reached does not matter.

    >>> walk = Walk([12])
    >>> for number in walk:
    ...     walk.add(number // prime for prime in (2, 3) if number % prime == 0)
    >>> sorted(walk.seen)
    [1, 2, 3, 4, 6, 12]
    """

    def __init__(self, start: Iterable[T]) -> None:
        self.seen: set[T] = set()
        self._pending: list[T] = []
        self.add(start)

    def add(self, more: Iterable[T]) -> None:
        """Visit these too, unless that is done or due."""
        for one in more:
            if one not in self.seen:
                self.seen.add(one)
                self._pending.append(one)

    def __iter__(self) -> Iterator[T]:
        while self._pending:
            yield self._pending.pop()
