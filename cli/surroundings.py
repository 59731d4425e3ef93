"""Variables of the environment that libraries read as numbers, and fail at in their own ways."""

import os

from campo_onnx.errors import UsageError

_NUMBERS = {  # least and largest
    "SOURCE_DATE_EPOCH": (0, 253_402_300_799),  # matplotlib's dates, up to the year 9999
    "POLARS_MAX_THREADS": (1, 1024),
}


def check_environment() -> None:
    """Refuse variables that are no numbers where a library needs one."""
    for name, (least, most) in _NUMBERS.items():
        text = os.environ.get(name)
        if text is not None and not _is_within(text, least, most):
            raise UsageError(
                f"the environment variable {name} is {text!r}",
                why=f"it must be a number from {least} to {most}",
                remedy=f"Correct it, or unset {name}.",
            )


def _is_within(text: str, least: int, most: int) -> bool:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
    return is_number and least <= int(text) <= most
