"""The strategies that are compared, and what they plan with."""

from dataclasses import replace
from pathlib import Path

from campo_onnx.calibrate.calibration import Calibration
from campo_onnx.calibrate.catalog import file_name, shipped_folder
from campo_onnx.costs.evidence import CostSource, Evidence
from campo_onnx.ops.precision import Precision
from campo_onnx.optimize.lists.oplists import preset
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.planning.comparison import BASELINE, ROWS
from campo_onnx.planning.options import Options
from campo_onnx.targets.target import Target


def label_of(strategy: str, lists: str) -> str:
    """The label of a strategy; TF_AMP comes with several lists."""
    return f"{strategy} {lists}" if strategy == "tf-amp" else strategy


STRATEGIES = {label_of(*row): row for row in ROWS}
"""Strategy and lists by label."""

TF_AMP = label_of(*BASELINE)
"""The paper's baseline: TensorFlow 1.15's automatic mixed precision."""

FP32, TORCH_AMP, CAMPO, OPTIMAL = "fp32", "torch-amp", "campo", "optimal"
PADDING = (CAMPO, OPTIMAL)
"""Those that zero-pad products for tensor cores."""


def options_for(target: Target, calibrated: Path | None = None) -> Options:
    """Options for a device: of a calibration, or of public figures where there is none."""
    name = file_name(target, Precision.FP16)
    file = calibrated or shipped_folder().joinpath(name)
    options = Options(target=target, lists=preset("campo"))
    if not file.is_file():
        return options
    evidence = Evidence(calibration=Calibration.from_json(file.read_text(encoding="utf-8"), name))
    return replace(options, costs=CostSource.MODEL, evidence=evidence)


def decided(plan: Plan) -> tuple[object, ...]:
    """Everything that decides a plan's graph: equal for two plans whose graphs are the same."""
    return plan.low_nodes, plan.pads
