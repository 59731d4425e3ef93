"""The cost of a Cast: Eq. 1 of the Campo paper, with a term for tensors that outgrow a cache."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """A size from which each further element of a Cast takes longer."""

    elements: int
    more_us: float  # microseconds that an element beyond it takes more than one before it

    def __post_init__(self) -> None:
        """Refuse sizes and times below zero."""
        if self.elements < 1 or not self.more_us >= 0:
            raise ValueError(
                f"a knee at {self.elements} elements of {self.more_us} us: needs at least 1, and a time"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CastModel:
    """Time of a Cast by the number of elements: Eq. 1 of the Campo paper."""

    r_us: float
    c_i_us: float  # constant microseconds of one more node in the step (the paper's C_I)
    knees: tuple[Knee, ...] = ()  # sizes from which elements take longer; none in the paper

    def __post_init__(self) -> None:
        """Refuse times that are none; an infinite one says that no Cast pays."""
        for name in ("r_us", "c_i_us"):
            time_us = getattr(self, name)
            if not time_us >= 0:
                raise ValueError(f"{name} is {time_us}, and must be a time")

    def cast_us(self, elements: int) -> float:
        """Time to cast `elements` elements, in either direction.

        >>> CastModel(r_us=0.001, c_i_us=3.0).cast_us(64 * 1024)
        68.536
        >>> CastModel(r_us=0.001, c_i_us=3.0, knees=(Knee(elements=1000, more_us=0.001),)).cast_us(2000)
        6.0
        """
        beyond_us = sum(knee.more_us * max(0, elements - knee.elements) for knee in self.knees)
        return self.r_us * elements + beyond_us + self.c_i_us

    def scaled(self, factor: float) -> "CastModel":
        """Casts that take `factor` times as long."""
        knees = tuple(replace(knee, more_us=knee.more_us * factor) for knee in self.knees)
        return CastModel(r_us=self.r_us * factor, c_i_us=self.c_i_us * factor, knees=knees)

    def __str__(self) -> str:
        """Say it in words: what a million elements take, with and without caches, and the constant."""
        last_us = self.r_us + sum(knee.more_us for knee in self.knees)
        range_ = f"{self.r_us * 1e6:,.1f}" + (f" to {last_us * 1e6:,.1f}" if self.knees else "")
        return f"{range_} us per million elements + {self.c_i_us:,.2f} us"
