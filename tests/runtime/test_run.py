"""Values that stay on a device."""

import onnx
import pytest

from campo_onnx.errors import UnsupportedModelError
from campo_onnx.runtime.onnxruntime.providers import machine
from campo_onnx.runtime.onnxruntime.run import empty_on_device, run_bound


def test_room_that_no_memory_has_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="fits into no memory"):
        empty_on_device([2**63 - 1], onnx.TensorProto.FLOAT, machine("cpu", 1))


def test_only_a_captured_graph_has_run_options() -> None:
    given = []

    class Session:
        def run_with_iobinding(self, binding, options=None):
            given.append(options)

    run_bound(Session(), None)
    run_bound(Session(), None, cuda_graph=2)
    assert given[0] is None
    assert given[1].get_run_config_entry("gpu_graph_id") == "2"
