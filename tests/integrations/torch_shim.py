"""Lets ORTModule of onnxruntime-training 1.19.2 run on a newer, CPU-only PyTorch; import it first.

ORTModule was written for PyTorch 2.0 to 2.4. Since then the TorchScript exporter moved, another
exporter became the default, and one of ORTModule's two C++ extensions no longer compiles. None of
this concerns campo-onnx: whoever has the versions that fit needs no shim.

``python torch_shim.py SCRIPT ARGUMENTS...`` runs a script with it.
"""

import functools
import importlib
import os
import pkgutil
import runpy
import sys
from types import ModuleType

import torch
import torch.onnx
import torch.onnx._internal

# An error shall end a test, not turn silently into a run in plain PyTorch.
os.environ["ORTMODULE_FALLBACK_POLICY"] = "FALLBACK_DISABLE"
# Custom autograd functions need the extension that no longer compiles.
os.environ["ORTMODULE_ENABLE_CUSTOM_AUTOGRAD"] = "0"

_MOVED = ("_globals", "_type_utils", "jit_utils", "registration", "symbolic_helper", "symbolic_opset")


def _restore_moved_modules() -> None:
    """Make the TorchScript exporter's modules importable from where they were."""
    package = importlib.import_module("torch.onnx._internal.torchscript_exporter")
    for info in pkgutil.iter_modules(package.__path__):
        if not info.name.startswith(_MOVED):
            continue
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for former in (torch.onnx, torch.onnx._internal):
            sys.modules[f"{former.__name__}.{info.name}"] = module
            setattr(former, info.name, module)


def _export_with_torchscript() -> None:
    """Make the exporter that ORTModule means the default again."""
    export = torch.onnx.export

    @functools.wraps(export)
    def with_former_default(*args, dynamo=False, **kwargs):
        return export(*args, dynamo=dynamo, **kwargs)

    torch.onnx.export = with_former_default


def _without_nvtx() -> None:
    """ORTModule marks ranges for NVIDIA's profiler, also where PyTorch has no CUDA."""
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *args, **kwargs: None


def _stub_custom_autograd() -> None:
    name = "onnxruntime.training.ortmodule.torch_cpp_extensions.torch_interop_utils"
    stub = ModuleType(name)
    stub.clear_all_grad_fns = lambda: None
    sys.modules[name] = stub
    importlib.import_module(name.rpartition(".")[0]).torch_interop_utils = stub


def _has_aten() -> bool:
    """Tell whether the extension was built that calls PyTorch's operators; do without it if not."""
    ortmodule = importlib.import_module("onnxruntime.training.ortmodule")
    extensions = importlib.import_module("onnxruntime.training.ortmodule.torch_cpp_extensions")
    if extensions.is_installed(ortmodule.ORTMODULE_TORCH_CPP_DIR):
        return True
    ortmodule._FALLBACK_INIT_EXCEPTION = None
    for user in ("_graph_execution_manager", "_utils"):
        module = importlib.import_module(f"onnxruntime.training.ortmodule.{user}")
        module.load_aten_op_executor_cpp_extension = lambda: None
    return False


_restore_moved_modules()
_export_with_torchscript()
if torch.version.cuda is None:
    _without_nvtx()
_stub_custom_autograd()
HAS_ATEN = _has_aten()
"""Whether networks with pooling or embeddings run; both become calls of PyTorch's operators."""

if __name__ == "__main__":  # python torch_shim.py SCRIPT ARGUMENTS...
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
