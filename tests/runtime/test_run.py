"""Values that stay on a device."""

import onnx
import pytest

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.runtime.providers import machine
from campo_onnx.runtime.run import empty_on_device


def test_room_that_no_memory_has_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="fits into no memory"):
        empty_on_device([2**63 - 1], onnx.TensorProto.FLOAT, machine("cpu", 1))
