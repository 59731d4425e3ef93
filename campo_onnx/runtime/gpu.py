"""The GPU that CUDA takes first: asked of the driver once, for everything that wants to know."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

_QUERY = "--query-gpu=uuid,name,driver_version,compute_cap"
_TIMEOUT_S = 10
_NONE_LISTED = "no NVIDIA GPU answers (nvidia-smi lists none)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU."""

    uuid: str  # what tells it from others of its kind
    name: str
    driver: str
    compute_capability: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """The GPU that CUDA takes first, or why there is none to be told."""

    gpu: Gpu | None
    problem: str = ""


def visible_gpu() -> Visible:
    """Find the GPU that CUDA takes first in this process, as CUDA_VISIBLE_DEVICES has it."""
    return first_visible(_listed(), os.environ)


def first_visible(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> Visible:
    """Choose among the GPUs that a driver lists, as CUDA does.

    CUDA numbers them by its own guess at their speed, unless CUDA_DEVICE_ORDER is PCI_BUS_ID, and the
    driver lists them by bus. Where they differ, a number does not say which is meant.
    """
    if not gpus:
        return Visible(gpu=None, problem=_NONE_LISTED)
    wanted = environment.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    if wanted in ("", "-1", "NoDevFiles"):
        return Visible(gpu=None, problem="CUDA_VISIBLE_DEVICES hides every GPU")
    if not wanted.isdecimal():
        matches = [gpu for gpu in gpus if gpu.uuid.startswith(wanted)]
        if len(matches) == 1:
            return Visible(gpu=matches[0])
        what = "no GPU" if not matches else "several GPUs"
        return Visible(gpu=None, problem=f"CUDA_VISIBLE_DEVICES names {wanted}, which is {what} here")
    if int(wanted) >= len(gpus):
        problem = f"CUDA_VISIBLE_DEVICES names GPU {wanted}, and there are {len(gpus)}"
        return Visible(gpu=None, problem=problem)
    names = {gpu.name for gpu in gpus}
    if len(names) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        problem = f"GPUs differ ({', '.join(sorted(names))}), and CUDA chooses which comes first"
        remedy = "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name one by its UUID in CUDA_VISIBLE_DEVICES"
        return Visible(gpu=None, problem=f"{problem}: {remedy}")
    return Visible(gpu=gpus[int(wanted)])


@cache
def _listed() -> tuple[Gpu, ...]:
    """All GPUs, in the order of their buses; none without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = [program, _QUERY, "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (subprocess.SubprocessError, OSError, UnicodeDecodeError):
        return ()
    rows = [[field.strip() for field in line.split(",")] for line in answer.stdout.splitlines()]
    return tuple(
        Gpu(uuid=row[0], name=row[1], driver=row[2], compute_capability=_capability(row[3]))
        for row in rows
        if len(row) == 4
    )


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)
