"""Cost-aware mixed precision for ONNX training graphs.

>>> from campo_onnx import Options, oplists, optimize_model, target  # doctest: +SKIP
>>> options = Options(target=target("h200"), lists=oplists("campo"))  # doctest: +SKIP
>>> result = optimize_model("step.onnx", options)  # doctest: +SKIP
>>> result.plan.speedup, result.model  # doctest: +SKIP
"""

import copyreg
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from campo_onnx.errors import CampoError
    from campo_onnx.integrations.inductor.options import inductor_pass
    from campo_onnx.integrations.trial.trial import try_step
    from campo_onnx.ir.exporter import export_model
    from campo_onnx.ops.precision import Precision
    from campo_onnx.optimize.lists.list_file import resolve as oplists
    from campo_onnx.optimize.lists.oplists import OpLists
    from campo_onnx.optimize.plan.plan import Plan
    from campo_onnx.planning.options import Options
    from campo_onnx.planning.pipeline import Optimized
    from campo_onnx.planning.pipeline import optimize as optimize_model
    from campo_onnx.targets.target import Target, target

    __version__: str


def _read_only(items: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(items)


# Our values hold read-only mappings, which Python itself neither pickles nor deep-copies. Values should
# travel between processes, and with the modules they are attached to.
copyreg.pickle(MappingProxyType, lambda mapping: (_read_only, (dict(mapping),)))

# Where each public name lives. Loaded on first use, so that `import campo_onnx` stays light.
_HOME = {
    "__version__": "campo_onnx.version:VERSION",
    "CampoError": "campo_onnx.errors:CampoError",
    "OpLists": "campo_onnx.optimize.lists.oplists:OpLists",
    "Optimized": "campo_onnx.planning.pipeline:Optimized",
    "Options": "campo_onnx.planning.options:Options",
    "Plan": "campo_onnx.optimize.plan.plan:Plan",
    "Precision": "campo_onnx.ops.precision:Precision",
    "Target": "campo_onnx.targets.target:Target",
    "export_model": "campo_onnx.ir.exporter:export_model",
    "inductor_pass": "campo_onnx.integrations.inductor.options:inductor_pass",
    "oplists": "campo_onnx.optimize.lists.list_file:resolve",
    "optimize_model": "campo_onnx.planning.pipeline:optimize",
    "target": "campo_onnx.targets.target:target",
    "try_step": "campo_onnx.integrations.trial.trial:try_step",
}

__all__ = [
    "CampoError",
    "OpLists",
    "Optimized",
    "Options",
    "Plan",
    "Precision",
    "Target",
    "__version__",
    "export_model",
    "inductor_pass",
    "oplists",
    "optimize_model",
    "target",
    "try_step",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'campo_onnx' has no attribute {name!r}")
    module, _, attribute = _HOME[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return list(__all__)
