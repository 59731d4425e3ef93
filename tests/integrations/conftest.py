"""ORTModule, where onnxruntime-training and PyTorch are installed."""

import importlib
import importlib.util
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))  # torch_shim and networks; importmode=importlib adds no folder


def _has_training_build() -> bool:
    # Release wheels of ONNX Runtime have the package, but not the module written in C++ behind it.
    return all(importlib.util.find_spec(name) for name in ("torch", "onnxruntime.training.ortmodule"))


@pytest.fixture(scope="session")
def ortmodule() -> SimpleNamespace:
    """``wrap(network)`` makes an ORTModule; ``networks`` and ``shim`` are the modules beside this file."""
    try:
        if not _has_training_build():
            pytest.skip("needs onnxruntime-training and torch: make test-ortmodule")
    except ModuleNotFoundError:
        pytest.skip("needs onnxruntime-training and torch: make test-ortmodule")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shim = importlib.import_module("torch_shim")
        module = importlib.import_module("onnxruntime.training.ortmodule")
        networks = importlib.import_module("networks")

    def wrap(network: Any) -> Any:
        return module.ORTModule(network, module.DebugOptions(log_level=module.LogLevel.ERROR))

    return SimpleNamespace(wrap=wrap, networks=networks, shim=shim)


@pytest.fixture
def mlp(ortmodule):
    def make():
        sys.modules["torch"].manual_seed(0)
        return ortmodule.networks.mlp()

    return make
