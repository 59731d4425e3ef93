"""Times that a runtime adds to the kernels of a step: assumptions, each with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from campo_onnx.files.codec import from_plain, from_toml
from campo_onnx.hardware.datasheet import Assumption


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuKernels:
    """Figures of a runtime's kernels on a CPU, for choosing among forms of one computation.

    Forms differ by kernels that run on one thread whatever there is, and by those that take a batch image by
    image. ``overhead.toml`` says what each figure is of.
    """

    view_us: float
    node_us: float
    gemm_gflop_per_s: float
    gemm_columns: float
    memory_gb_per_s: float
    row_us: float
    element_us: float
    long_row_element_us: float
    sum_us: float
    conv_gflop_per_s: float
    conv_filters: float
    conv_positions: float
    pointwise_image_us: float
    image_us: float
    small_image_us: float
    group_us: float
    group_patch_us: float
    transposed_positions: float
    transposed_image_us: float
    transposed_sum_us: float
    transposed_row_us: float
    transposed_group_us: float
    transposed_group_sum_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Constant times of nodes in a running step.

    `kernels` are those of a CPU, by the name of the hardware; ``"cpu"`` for any other.
    """

    launch_us: Assumption  # of one more kernel
    host_us: Assumption  # of a node that launches nothing, such as Reshape
    kernels: Mapping[str, CpuKernels] = field(default_factory=dict)


@cache
def read_overheads(package: str) -> Mapping[str, Overhead]:
    """Read ``overhead.toml`` of a runtime's package: a table for each way in which it runs."""
    text = files(package).joinpath("overhead.toml").read_bytes()
    return from_plain(from_toml(text), dict[str, Overhead])
