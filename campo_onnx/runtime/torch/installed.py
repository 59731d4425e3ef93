"""PyTorch as it is installed: whether it loads, its release, and the compiler that its own compiler needs."""

import os
import re
import shutil
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

OLDEST = (2, 9)
"""The release that the extra ``torch`` asks for: the first with ``fp32_precision`` for each library."""

TESTED = (2, 13)
"""The release that steps were run and measured with."""

_INSTALL = 'pip install "campo-onnx[torch]"'


def installed_version() -> str:
    """Version of the installed wheel; ``""`` without one."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def release_of(wheel: str) -> tuple[int, ...]:
    """Read the first two numbers of a version.

    >>> release_of("2.13.0+cpu")
    (2, 13)
    """
    return tuple(int(part) for part in re.findall(r"\d+", wheel)[:2])


def problem_with(wheel: str, loads: str) -> str:
    """Say what is wrong with an installation, and which command mends it; an empty text if nothing is.

    `loads` says why it does not load; empty if it does.

    >>> problem_with("2.13.0", "")
    ''
    """
    oldest = ".".join(map(str, OLDEST))
    if not wheel:
        return f"PyTorch is not installed. Install it with: {_INSTALL}"
    if loads:
        mend = f"Install it anew: pip uninstall --yes torch && {_INSTALL}"
        return f"PyTorch {wheel} does not load: {loads}. {mend}"
    if release_of(wheel) < OLDEST:
        return (
            f"PyTorch {wheel} is too old: campo-onnx[torch] takes {oldest} or newer. "
            f"Update it: pip install --upgrade 'torch>={oldest}'"
        )
    return ""


def untested(wheel: str) -> str:
    """Say that steps were never run with a release; an empty text for the one that is tested.

    >>> untested("2.13.1+cu130")
    ''
    """
    if release_of(wheel) == TESTED:
        return ""
    tested, oldest = (".".join(map(str, release)) for release in (TESTED, OLDEST))
    return (
        f"PyTorch {wheel} is not tested: steps were run with {tested}, and campo-onnx[torch] takes {oldest} "
        "or newer"
    )


@cache
def torch_problem() -> str:
    """Say why PyTorch cannot be used here, and what mends it; an empty text if it can."""
    wheel, loads = installed_version(), ""
    if wheel:
        try:
            import_module("torch")
        except Exception as error:  # whatever a wheel for another Python or C library raises
            loads = str(error).strip() or type(error).__name__
    return problem_with(wheel, loads)


def cxx_problem() -> str:
    """Say that there is no C++ compiler, which TorchInductor needs on CPUs; empty if there is."""
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(name):
        return ""
    return f"TorchInductor needs a C++ compiler, and there is no {name} here: install one, or name it in CXX"
