"""Tests on the real plugin; without it, or without BF16 units, they say so and are skipped."""

import pytest

from campo_onnx.runtime.openvino.installed import openvino


@pytest.fixture(scope="session")
def bf16_units() -> None:
    """Skip where the CPU has no BF16 units."""
    pytest.importorskip("openvino")
    units = openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if "BF16" not in units:
        pytest.skip(f"this CPU has no BF16 units (OpenVINO tells {', '.join(units)})")
