"""The precisions a node can run in.

Light to import: the command line offers them before ONNX is loaded, so that its numbers of data types
stand here as numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from typing import ClassVar

_by_value: dict[str, "Precision"] = {}
_NAMES = ("value", "onnx_dtype", "onnx_name", "itemsize_bytes", "fraction_bits", "largest", "smallest_normal")


class Precision:
    """A floating-point format, with what ONNX calls it and what it can hold.

    ``Precision("fp16")`` looks a format up by its name, and is the constant :attr:`FP16`: there is
    one object for a format, so that ``is`` compares formats. It cannot be changed. It is not a
    dataclass, since msgspec would write that to files field by field.
    """

    __slots__ = _NAMES

    value: str
    # the `TensorProto.DataType`, and its name in schemas
    onnx_dtype: int
    onnx_name: str
    itemsize_bytes: int
    fraction_bits: int  # bits of the significand that are stored
    largest: float
    smallest_normal: float  # smallest magnitude that keeps all its significand bits

    FP32: ClassVar["Precision"]
    FP16: ClassVar["Precision"]
    BF16: ClassVar["Precision"]

    def __new__(cls, value: str) -> "Precision":
        """Look a format up."""
        precision = _by_value.get(value)
        if precision is None:
            raise ValueError(f"unknown precision {value!r}, known: {', '.join(_by_value)}")
        return precision

    def __setattr__(self, name: str, _: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __reduce__(self) -> tuple[type["Precision"], tuple[str]]:
        """Copy and pickle by name: the copy is the very object."""
        return Precision, (self.value,)

    def __repr__(self) -> str:
        return f"Precision({self.value!r})"

    def to_plain(self) -> str:
        """The name: what files hold of a format."""
        return self.value

    @classmethod
    def from_plain(cls, plain: object) -> "Precision":
        """Read :meth:`to_plain` back."""
        return cls(str(plain))

    @property
    def name(self) -> str:
        """The name in capitals."""
        return self.value.upper()

    @property
    def is_low(self) -> bool:
        """Whether it is narrower than FP32."""
        return self.itemsize_bytes < Precision.FP32.itemsize_bytes

    @property
    def is_narrow(self) -> bool:
        """Whether it has fewer exponents than FP32: small gradients vanish without a loss scale."""
        return self.smallest_normal > Precision.FP32.smallest_normal

    @property
    def tensor_type(self) -> str:
        """The name of a tensor of it in ONNX's schemas."""
        return f"tensor({self.onnx_name})"


def precisions() -> tuple[Precision, ...]:
    """All formats, FP32 first."""
    return tuple(_by_value.values())


def low_precisions() -> tuple[Precision, ...]:
    """The formats a node may be turned into."""
    return tuple(precision for precision in _by_value.values() if precision.is_low)


def is_low_dtype(dtype: int | None) -> bool:
    """Whether a ``TensorProto.DataType`` is that of a low format.

    >>> is_low_dtype(Precision.FP16.onnx_dtype), is_low_dtype(Precision.FP32.onnx_dtype)
    (True, False)
    """
    return any(precision.onnx_dtype == dtype for precision in low_precisions())


def low_precision_of(dtype: int) -> Precision | None:
    """Return the low format that is stored as a ``TensorProto.DataType``, if there is one."""
    return next((precision for precision in low_precisions() if precision.onnx_dtype == dtype), None)


@contextmanager
def temporary_precision(
    value: str,
    *,
    onnx_dtype: int,
    onnx_name: str,
    itemsize_bytes: int,
    fraction_bits: int,
    largest: float,
    smallest_normal: float,
) -> Iterator[Precision]:
    """Have one more format for the length of a block."""
    precision = _add(value, onnx_dtype, onnx_name, itemsize_bytes, fraction_bits, largest, smallest_normal)
    try:
        yield precision
    finally:
        del _by_value[value]


def _add(value: str, *facts: int | float | str) -> Precision:
    if value in _by_value:
        raise ValueError(f"the precision {value!r} is registered twice")
    precision = object.__new__(Precision)
    for name, fact in zip(_NAMES, (value, *facts), strict=True):
        object.__setattr__(precision, name, fact)
    _by_value[value] = precision
    return precision


Precision.FP32 = _add("fp32", 1, "float", 4, 23, 3.4028234663852886e38, 2.0**-126)
Precision.FP16 = _add("fp16", 10, "float16", 2, 10, 65504.0, 2.0**-14)
Precision.BF16 = _add("bf16", 16, "bfloat16", 2, 7, 3.3895313892515355e38, 2.0**-126)
