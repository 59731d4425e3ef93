"""The failure that an error of ONNX Runtime means."""

import pytest

from campo_onnx.bench.failure import failure_of
from campo_onnx.errors import DeviceUnavailableError, ModelError, UnsupportedModelError


@pytest.mark.parametrize(
    "why",
    [
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer",
        "CUDA failure 2: out of memory ; GPU=0",
        "CUDNN failure 4000: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "CUDNN failure 2: CUDNN_STATUS_ALLOC_FAILED ; GPU=0",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
        "Available memory of 12 is smaller than requested bytes of 1024",
        "std::bad_alloc",
    ],
)
def test_out_of_memory(why: str) -> None:
    failure = failure_of(ModelError("the training step fails while it runs", why=why))
    assert failure.text.startswith("the device is out of memory")
    assert "--dim batch" in failure.text
    assert failure.exit_code == DeviceUnavailableError.exit_code


def test_out_of_memory_of_python() -> None:
    assert failure_of(MemoryError()).text.startswith("the device is out of memory: MemoryError")


@pytest.mark.parametrize(
    "why",
    [
        "CUDA failure 719: unspecified launch failure ; GPU=0",
        "CUDA failure 700: an illegal memory access was encountered",
        "CUDA failure 46: all CUDA-capable devices are busy or unavailable",
        "CUDA error: device-side assert triggered",
    ],
)
def test_a_lost_device(why: str) -> None:
    failure = failure_of(ModelError("the training step fails while it runs", why=why))
    assert failure.text.startswith("the device failed")
    assert failure.exit_code == DeviceUnavailableError.exit_code


def test_anything_else_stays_as_it_is() -> None:
    error = UnsupportedModelError("no kernel for Mish", remedy="Export without it.")
    assert failure_of(error).text == str(error)
    assert failure_of(error).exit_code == UnsupportedModelError.exit_code
    assert failure_of(RuntimeError("odd")).exit_code == ModelError.exit_code
    assert failure_of(RuntimeError()).text == "RuntimeError"
