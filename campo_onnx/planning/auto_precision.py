"""Which low precision a graph trains in: the one with the faster plan, where gradients survive."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from campo_onnx.ir.importer import import_model
from campo_onnx.ops.precision import Precision, low_precisions
from campo_onnx.optimize.plan.plan import Plan
from campo_onnx.optimize.values.loss_scale import loss_scaling, low_gradients
from campo_onnx.planning.options import Options
from campo_onnx.planning.pipeline import decide, problem_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionChoice:
    """A low precision, and why.

    Parameters
    ----------
    low
        The precision.
    why
        A sentence.
    plans
        The plan in each precision that the device computes in.
    """

    low: Precision
    why: str
    plans: Mapping[Precision, Plan]


def choose_precision(source: str | Path | onnx.ModelProto, options: Options) -> PrecisionChoice:
    """Choose between the low precisions that a device computes in.

    Each is planned. Without a loss scale in the graph small gradients become zero in FP16, so that BF16 is
    taken where there is a choice. Otherwise the plan that is predicted to be faster decides, if the
    difference is more than `options.min_gain` of the step; if not, FP16 does, which rounds eight times
    finer than BF16.

    Parameters
    ----------
    source
        The FP32 training step.
    options
        What to decide with; `low` does not matter.

    Raises
    ------
    campo_onnx.errors.CampoError
        For anything wrong with the model or the options.
    """
    imported = import_model(source, options.dims)
    name = options.device.name
    if imported.stamp is not None:
        low = Precision(imported.stamp.low)
        return PrecisionChoice(low=low, why="The model was optimized in it before.", plans={})
    plans: dict[Precision, Plan] = {}
    for low in filter(options.device.computes_in, low_precisions()):
        chosen = replace(options, low=low)
        plans[low] = decide(problem_of(imported, chosen), imported, chosen)
    if len(plans) < 2:
        low = next(iter(plans), Precision.FP16)
        alone = f"It is the only low precision that {name} computes in."
        return PrecisionChoice(low=low, why=alone if plans else f"{name} computes in none.", plans=plans)
    view = imported.view
    fp16, bf16 = plans[Precision.FP16], plans[Precision.BF16]
    fp16_ms, bf16_ms = (plan.predicted_us / 1000 for plan in (fp16, bf16))
    times = f"predicted {fp16_ms:.3f} ms in FP16 and {bf16_ms:.3f} ms in BF16"
    if unscaled := low_gradients(view, loss_scaling(view), fp16.low_nodes):
        why = (
            f"The graph does not scale its loss, and {len(unscaled)} nodes of the backward pass would lose "
            f"small gradients in FP16; {times}."
        )
        return PrecisionChoice(low=Precision.BF16, why=why, plans=plans)
    if not (fp16.low_nodes or bf16.low_nodes):
        return PrecisionChoice(low=Precision.FP16, why="Neither low precision pays: FP32 stays.", plans=plans)
    least_us = options.min_gain * min(fp16.fp32_us, bf16.fp32_us)
    if abs(fp16.predicted_us - bf16.predicted_us) > least_us:
        low = Precision.FP16 if fp16.predicted_us < bf16.predicted_us else Precision.BF16
        return PrecisionChoice(low=low, why=f"Its step is faster: {times}.", plans=plans)
    why = f"Both steps take about as long ({times}), and FP16 rounds finer."
    return PrecisionChoice(low=Precision.FP16, why=why, plans=plans)
