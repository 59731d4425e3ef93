"""What a Cast costs: Eq. 1 of the Campo paper."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CastModel:
    """Time of a Cast by the number of elements: Eq. 1 of the Campo paper.

    Parameters
    ----------
    r_us
        Microseconds per element.
    c_i_us
        Constant microseconds of one more node in the step (the paper's C_I).
    """

    r_us: float
    c_i_us: float

    def __post_init__(self) -> None:
        """Refuse times that are none; an infinite one says that no Cast pays."""
        for name in ("r_us", "c_i_us"):
            time_us = getattr(self, name)
            if not time_us >= 0:
                raise ValueError(f"{name} is {time_us}, and must be a time")

    def cast_us(self, elements: int) -> float:
        """Time to cast `elements` elements, in either direction.

        Examples
        --------
        >>> CastModel(r_us=0.001, c_i_us=3.0).cast_us(64 * 1024)
        68.536
        """
        return self.r_us * elements + self.c_i_us
