"""How much of each step the tensor cores' pipe was busy, beside its times."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from campo_onnx.bench.result import BenchResult
from campo_onnx.errors import DeviceUnavailableError, UsageError
from campo_onnx.runtime.ncu import TENSOR_PIPE, count


def with_tensor_pipe(
    result: BenchResult, files: Sequence[Path], dims: Mapping[str, int] | None = None
) -> BenchResult:
    """Read the tensor pipe's counter over one more step of each graph that ran.

    Where counters cannot be read, the result says why and is complete otherwise.

    Parameters
    ----------
    result
        What was measured, on a GPU.
    files
        The graphs, in the order of its rows.
    dims
        Sizes of symbolic dimensions.

    Raises
    ------
    UsageError
        If the result is of a CPU.
    """
    if result.machine.provider != "cuda":
        raise UsageError("a CPU has no tensor cores to look at", remedy="Leave --tensor-cores out.")
    ran = [(row.name, file) for row, file in zip(result.rows, files, strict=True) if not row.failure]
    try:
        counted = count([file for _, file in ran], metrics=[TENSOR_PIPE], dims=dims)
    except DeviceUnavailableError as error:
        return replace(result, notes=(*result.notes, f"tensor cores not measured: {error}"))
    percents = {
        name: found[TENSOR_PIPE]
        for (name, _), found in zip(ran, counted, strict=True)
        if found is not None and TENSOR_PIPE in found
    }
    rows = tuple(
        replace(row, tensor_pipe_share=percents[row.name] / 100) if row.name in percents else row
        for row in result.rows
    )
    return replace(result, rows=rows)
