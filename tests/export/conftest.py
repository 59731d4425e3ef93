"""Makes modules beside the tests importable, and draws the same numbers in every run."""

import sys
from collections.abc import Iterator
from pathlib import Path

import onnxruntime
import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # no package


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    onnxruntime.set_seed(0)  # masks of dropout
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
