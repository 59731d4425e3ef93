"""Small graphs as text, planned at costs that make everything worth lowering."""

import warnings
from dataclasses import replace

import numpy as np
import onnx.parser
from onnx import numpy_helper
from onnx.helper import make_opsetid

from campo_onnx import Options, oplists, optimize_model, target
from campo_onnx.emulation.numerics import emulate
from campo_onnx.runtime.chunked_run import run
from campo_onnx.runtime.registry import machine

STEADY = ("optimal", "campo", "fine-grained", "tf-amp", "torch-amp", "nvidia-amp")


def model_of(body, constants=None, *, inputs, outputs):
    """A graph as text, with constants of any type."""
    text = f'<ir_version: 10, opset_import: ["": 20]> g ({inputs}) => ({outputs}) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    if "com.microsoft" in body:
        model.opset_import.append(make_opsetid("com.microsoft", 1))
    for name, value in (constants or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def mixed_of(model, strategy, **options):
    """Everything that may go low, goes low: launches cost nothing."""
    free = replace(target("v100"), launch_us=1e-9)
    settings = Options(
        target=free, lists=oplists("campo"), strategy=strategy, min_gain=0.0, pads=False, **options
    )
    return optimize_model(model, settings)


def both(model, feeds, strategy, **options):
    """Outputs in FP32, and of the mixed graph as emulated."""
    optimized = mixed_of(model, strategy, **options)
    here = machine("cpu")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return run(model, feeds, here), run(emulate(optimized.model), feeds, here), optimized


def reasons(model, strategy="fine-grained", **options):
    return {d.node: d.decided_by for d in mixed_of(model, strategy, **options).plan.decisions}
