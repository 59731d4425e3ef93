"""Sizes of products that tensor cores take."""

from typing import NamedTuple


class Multiples(NamedTuple):
    """Multiples that the sizes of a product should be of, so that tensor cores take it unpadded."""

    # m, n, k: of the sizes of a matrix product.
    m: int
    n: int
    k: int
    channels: int  # of a convolution's input and output channels, per group
    # Whether a transposed left factor is copied before it is multiplied: any length of its sums then fits.
    repacks_left: bool = False

    @classmethod
    def of_all(cls, multiple: int) -> "Multiples":
        """Every size alike."""
        return cls(m=multiple, n=multiple, k=multiple, channels=multiple)
