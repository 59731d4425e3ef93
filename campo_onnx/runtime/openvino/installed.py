"""OpenVINO as it is installed: the module, or one message that says how to install it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING

from campo_onnx.errors import DeviceUnavailableError

if TYPE_CHECKING:
    import openvino as ov

__all__ = ["installed_version", "openvino", "openvino_problem", "ov"]

OLDEST = (2026, 4)
"""The version whose precisions and names were measured; what older ones execute is unknown."""

_INSTALL = 'pip install "campo-onnx[openvino]"'
_TELEMETRY = "openvino_telemetry"


def problem_with(module: ModuleType | None, why: str, wheel: str) -> tuple[str, str]:
    """Say what is wrong with an installation, and which command mends it; two empty texts if nothing is.

    >>> problem_with(None, "No module named 'openvino'", "")
    ('OpenVINO is not installed', 'Install it with: pip install "campo-onnx[openvino]"')
    """
    if module is None and not wheel:
        return "OpenVINO is not installed", f"Install it with: {_INSTALL}"
    if module is None or not hasattr(module, "Core"):
        reason = why or "files of it are missing"
        mend = f"Install it anew: pip uninstall --yes openvino && {_INSTALL}"
        return f"OpenVINO {wheel} does not load: {reason}", mend
    if not is_new_enough(wheel):
        oldest = ".".join(map(str, OLDEST))
        return (
            f"OpenVINO {wheel} is too old: campo-onnx needs {oldest} or newer",
            f"Update it: pip install --upgrade 'openvino>={oldest}'",
        )
    return "", ""


def is_new_enough(wheel: str) -> bool:
    """Whether a wheel of this version is one that campo-onnx takes."""
    return tuple(int(part) for part in wheel.split(".")[:2] if part.isdigit()) >= OLDEST


def installed_version() -> str:
    """Version of the installed wheel; ``""`` without one."""
    try:
        return version("openvino")
    except PackageNotFoundError:
        return ""


@contextmanager
def _without_telemetry() -> Iterator[None]:
    """Import OpenVINO as if its telemetry package were not installed: it would report every import.

    OpenVINO then uses a stub of its own that sends nothing and writes no file.
    """
    loaded = sys.modules.get(_TELEMETRY)
    if loaded is not None:  # somebody else imported it, and decided for themselves
        yield
        return
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_TELEMETRY]


@cache
def _loaded() -> tuple[ModuleType | None, str, str]:
    module, why = None, ""
    try:
        with _without_telemetry():
            module = import_module("openvino")
            import_module("openvino.passes")
    except ModuleNotFoundError as error:
        why = str(error)
    except Exception as error:  # whatever a wheel for another Python or C library raises
        why = str(error).strip() or type(error).__name__
    return (module, *problem_with(module, why, installed_version()))


def openvino_problem() -> str:
    """Why OpenVINO cannot be used, and what mends it; ``""`` when it can."""
    _, problem, remedy = _loaded()
    return f"{problem}. {remedy}" if problem else ""


def openvino() -> ModuleType:
    """Return the module."""
    module, problem, remedy = _loaded()
    if problem or module is None:
        raise DeviceUnavailableError(problem, remedy=f"{remedy}. Planning works without it.")
    return module


if not TYPE_CHECKING:

    def __getattr__(name: str) -> ModuleType:
        """``from campo_onnx.runtime.openvino.installed import ov`` is the module, or the message."""
        if name == "ov":
            return openvino()
        raise AttributeError(name)
