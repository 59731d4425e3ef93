"""ONNX Runtime as it is installed: the module, or one message that says how to mend the installation.

Its wheels (``onnxruntime``, ``onnxruntime-gpu``, ``onnxruntime-training`` ...) write into one folder. Where
two were installed the last one wins, and where one of them was removed again parts of the other are gone.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distributions, version
from types import ModuleType
from typing import TYPE_CHECKING

from campo_onnx.errors import DeviceUnavailableError

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = ["installed_wheels", "onnxruntime", "ort", "problem_with", "runtime_problem"]

OLDEST = (1, 24)
"""The first version whose sessions say where each node runs."""

_TELEMETRY_OFF = "ORT_DISABLE_TELEMETRY"
"""From 1.29 on the wheels keep a device ID and a database of events in the cache folder, and send them."""

_TRAINING = "onnxruntime-training"
_NEEDED = ("InferenceSession", "SessionOptions", "get_available_providers")


def installed_wheels() -> Mapping[str, str]:
    """Versions of all installed wheels of ONNX Runtime, by name."""
    wheels = ((d.metadata["Name"] or "", d.version) for d in distributions())
    return {
        name: version for name, version in wheels if name == "onnxruntime" or name.startswith("onnxruntime-")
    }


def problem_with(module: ModuleType | None, why: str, wheels: Mapping[str, str]) -> tuple[str, str]:
    """Say what is wrong with an installation, and which commands mend it; two empty texts if nothing is.

    >>> problem_with(None, "No module named 'onnxruntime'", {})[0]
    'ONNX Runtime is not installed'
    """
    wheel = "onnxruntime-gpu" if sys.platform in ("linux", "win32") else "onnxruntime"
    runtimes = {name: version for name, version in wheels.items() if not name.startswith("onnxruntime-ext")}
    if not runtimes and module is None:
        return "ONNX Runtime is not installed", f"Install it with: pip install {wheel}"
    names = " ".join(sorted(runtimes)) or "onnxruntime"
    anew = f"Install one wheel anew: pip uninstall --yes {names} && pip install {wheel}"
    if module is None or any(not hasattr(module, name) for name in _NEEDED):
        told = ", ".join(f"{name} {version}" for name, version in sorted(runtimes.items()))
        broken = why or "files of it are missing, as after removing one of two wheels"
        return f"ONNX Runtime does not load ({told or 'no wheel of it is installed'}): {broken}", anew
    version = str(getattr(module, "__version__", "0"))
    if (
        not _is_new_enough(version)
        and _TRAINING not in runtimes
        and not any("training" in name for name in runtimes)
    ):
        oldest = ".".join(map(str, OLDEST))
        return (
            f"ONNX Runtime {version} is too old: campo-onnx needs {oldest} or newer",
            f"Update it: pip install --upgrade '{next(iter(runtimes), wheel)}>={oldest}'",
        )
    return "", ""


def _is_new_enough(version: str) -> bool:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= OLDEST


def only_wheel() -> str:
    """Version of the wheel, where one of the usual two is installed and new enough; nothing is loaded."""
    versions = []
    for name in ("onnxruntime", "onnxruntime-gpu"):
        with suppress(PackageNotFoundError):
            versions.append(version(name))
    return versions[0] if len(versions) == 1 and _is_new_enough(versions[0]) else ""


@cache
def _loaded() -> tuple[ModuleType | None, str, str]:
    module, why = None, ""
    # Read once, as the library starts; whoever has set it to something else, or imported it before, decides.
    is_off = os.environ.setdefault(_TELEMETRY_OFF, "1") == "1"
    try:
        module = import_module("onnxruntime")
        if is_off and hasattr(module, "disable_telemetry_events"):  # Windows has no such variable
            module.disable_telemetry_events()
    except ModuleNotFoundError as error:
        why = str(error)
    except Exception as error:  # whatever a wheel for another Python or C library raises
        why = str(error).strip() or type(error).__name__
    return (module, *problem_with(module, why, installed_wheels()))


def runtime_problem() -> str:
    """Why ONNX Runtime cannot be used; ``""`` when it can."""
    _, problem, _ = _loaded()
    return problem


def onnxruntime() -> ModuleType:
    """Return the module."""
    module, problem, remedy = _loaded()
    if problem or module is None:
        raise DeviceUnavailableError(
            problem, remedy=f"{remedy}. Planning from public figures (--costs datasheet) works without it."
        )
    return module


def two_wheels() -> str:
    """Say that two wheels share the folder, where that is so; ``""`` otherwise."""
    runtimes = sorted(name for name in installed_wheels() if not name.startswith("onnxruntime-ext"))
    if len(runtimes) < 2:
        return ""
    return (
        f"{' and '.join(runtimes)} are installed in one folder, and the last one wins; keep one: "
        f"pip uninstall --yes {' '.join(runtimes)} && pip install onnxruntime-gpu"
    )


if not TYPE_CHECKING:

    def __getattr__(name: str) -> ModuleType:
        """``from campo_onnx.runtime.onnxruntime.installed import ort`` is the module, or the message."""
        if name == "ort":
            return onnxruntime()
        raise AttributeError(name)
