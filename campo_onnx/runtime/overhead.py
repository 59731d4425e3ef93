"""Times that a runtime adds to the kernels of a step: assumptions, each with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from campo_onnx.codec import from_plain, from_toml
from campo_onnx.hardware.datasheet import Assumption


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Constant times of nodes in a running step.

    Parameters
    ----------
    launch_us
        Of one more kernel.
    host_us
        Of a node that launches nothing, such as Reshape.
    """

    launch_us: Assumption
    host_us: Assumption


@cache
def read_overheads(package: str) -> Mapping[str, Overhead]:
    """Read ``overhead.toml`` of a runtime's package: a table for each way in which it runs."""
    text = files(package).joinpath("overhead.toml").read_bytes()
    return from_plain(from_toml(text), dict[str, Overhead])
