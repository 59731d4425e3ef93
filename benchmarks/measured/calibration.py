"""A calibration of this machine with OpenVINO, in bounded time, where there is none yet."""

import time
from dataclasses import replace
from pathlib import Path

from benchmarks.measured.plans import RUNTIME, calibration_here
from campo_onnx.calibrate.calibration import Calibration
from campo_onnx.calibrate.catalog import file_name, make_folder, user_folder
from campo_onnx.calibrate.run import QUICK, Workload, calibrate
from campo_onnx.errors import ProfileError
from campo_onnx.files import write_text
from campo_onnx.measure.node_timer import NodeTimer
from campo_onnx.measure.store import Store, default_path
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.registry import machine
from campo_onnx.targets.detect import target_of

QUICK_OPS = ("MatMul", "Conv", "Gemm", "Add", "Mul", "ConvTranspose", "Transpose", "ReduceSum", "Relu")
"""Operators that the networks spend their time in; other operators take the general model."""

_QUICK_SHAPES = 20


class _TimeUpError(Exception):
    pass


def workload(*, is_quick: bool) -> Workload:
    """Choose what to time."""
    chosen = QUICK["cpu"]
    if not is_quick:
        return chosen
    return replace(chosen, ops=QUICK_OPS, sampling=replace(chosen.sampling, count=_QUICK_SHAPES))


def calibrate_here(chosen: Workload, limit_s: float) -> str:
    """Calibrate unless there is a calibration that fits, and name it.

    When the time is up, models are fitted to what has been timed; all timings are kept.

    Parameters
    ----------
    chosen
        What to time.
    limit_s
        After how long to stop.

    Returns
    -------
    str
        What :func:`calibration_here` gives; "" where too little was timed.
    """
    if there := calibration_here():
        return there
    here, end_s = machine("cpu", runtime=RUNTIME), time.monotonic() + limit_s
    figures = target_of(here)

    def advance(done: int, total: int) -> None:
        if time.monotonic() > end_s:
            raise _TimeUpError

    with Store(default_path()) as store:
        timer = NodeTimer(machine=here, store=store)
        try:
            calibration = calibrate(chosen, timer, figures, Precision.BF16, advance)
        except _TimeUpError:
            try:
                calibration = calibrate(chosen, replace(timer, only_stored=True), figures, Precision.BF16)
            except ProfileError:
                return ""
    _keep(calibration)
    return calibration_here()


def _keep(calibration: Calibration) -> Path:
    make_folder(user_folder())
    path = user_folder() / file_name(calibration.target, Precision.BF16)
    write_text(calibration.to_json(), path)
    return path
