"""A choice of low library kernels and of values that are stored low: one minimum cut over measured times.

A choice for each library kernel, and one for each value that is stored between generated kernels and read by
library kernels. A kernel pays its measured time. A stored value pays, in bytes, for each copy that somebody
needs and for each generated kernel that reads it. Edges within a generated kernel cost nothing: it computes
in FP32 registers whatever is chosen.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from campo_onnx.optimize.minimum_cut import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """A library kernel that may be low."""

    fp32_us: float
    low_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredValue:
    """An FP32 value that is stored between kernels.

    Raises ValueError if a value that may be stored low must be there in FP32, too.
    """

    name: str
    cast_us: float  # reading all of it in FP32 and writing it low: six bytes an element
    writer: str | None = None  # the free library kernel that writes it
    is_generated: bool = False  # whether a generated kernel writes it: one more copy is one more write
    readers: tuple[str, ...] = ()  # free library kernels that read it
    groups: int = 0  # generated kernels that read it, beside the one that writes it
    is_needed_in_fp32: bool = False  # by library kernels that stay FP32, or since it leaves the graph
    may_be_low: bool = False  # whether it may be stored low alone

    def __post_init__(self) -> None:
        if self.may_be_low and (self.is_needed_in_fp32 or not self.readers or not self.is_generated):
            raise ValueError(f"{self.name} may not be stored low alone")


class _Term(NamedTuple):
    """A cost that is paid while any of `yes` is low and any of `no` is FP32; None is always so."""

    cost_us: float
    yes: tuple[str, ...] | None
    no: tuple[str, ...] | None

    def is_paid(self, low: Collection[str]) -> bool:
        is_yes = self.yes is None or any(name in low for name in self.yes)
        return is_yes and (self.no is None or any(name not in low for name in self.no))


def _terms(value: StoredValue) -> Iterator[_Term]:
    """Charge for the copies of a value that are written, and for what generated kernels read."""
    read_low = write_low = value.cast_us / 3
    read_fp32 = write_fp32 = 2 * read_low
    own = (value.name,) if value.may_be_low else None
    if value.is_generated:
        yield _Term(write_low, value.readers, None)
        if value.is_needed_in_fp32 or (value.groups and own is None):
            yield _Term(write_fp32, None, None)
        else:
            yield _Term(write_fp32, None, own or value.readers)
        yield _Term(value.groups * read_low, None, None)
        yield _Term(value.groups * (read_fp32 - read_low), None, own)
        return
    writer = None if value.writer is None else (value.writer,)
    yield _Term(read_fp32 + write_low, value.readers, writer)
    yield _Term(value.groups * read_low, None, None)
    yield _Term(value.groups * (read_fp32 - read_low), None, writer)
    if writer is not None:
        yield _Term(read_low + write_fp32, writer, None if value.is_needed_in_fp32 else value.readers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The fastest choice, and what nothing can be faster than."""

    low: frozenset[str]  # names of kernels and of values stored low alone
    predicted_us: float
    fp32_us: float
    lower_bound_us: float


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Kernels and values to decide about, with costs."""

    kernels: Mapping[str, KernelTime]
    values: Sequence[StoredValue]

    def predicted_us(self, low: Collection[str]) -> float:
        """Predict kernels and stored values together; infinite for what is not allowed."""
        if any(set(v.readers).difference(low) for v in self.values if v.may_be_low and v.name in low):
            return math.inf
        kernels_us = [k.low_us if name in low else k.fp32_us for name, k in self.kernels.items()]
        terms = (term for value in self.values for term in _terms(value))
        return math.fsum([*kernels_us, *(term.cost_us for term in terms if term.is_paid(low))])

    def decide(self) -> Decision:
        """Find the choice that is predicted to be fastest."""
        shared = [value.name for value in self.values if value.may_be_low]
        network = Network([*self.kernels, *shared])
        for name, kernel in self.kernels.items():
            network.pay(kernel.fp32_us)
            network.gain(kernel.fp32_us - kernel.low_us, name)
        for value in self.values:
            for term in _terms(value):
                network.pay(*term[:1], yes=term.yes, no=term.no)
            for reader in value.readers if value.may_be_low else ():
                network.require(value.name, reader)
        cut = network.cut()
        return Decision(
            low=cut.yes,
            predicted_us=self.predicted_us(cut.yes),
            fp32_us=self.predicted_us(frozenset()),
            lower_bound_us=cut.cost_us,
        )
