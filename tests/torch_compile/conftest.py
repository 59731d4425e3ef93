"""The same numbers in every run, nothing compiled or warned of before, modules beside tests importable."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # no package


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")
    from campo_onnx.integrations.torch_compile import warn_once

    warn_once._warned.clear()
    torch._dynamo.reset()
    with torch.random.fork_rng(), warnings.catch_warnings():
        # Torch's own, of what it does on the way; ours are RuntimeWarnings.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=UserWarning)
        torch.manual_seed(0)
        yield
