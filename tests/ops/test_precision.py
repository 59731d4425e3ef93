"""The limits of each format, against NumPy and ml_dtypes."""

import ml_dtypes
import numpy as np
import onnx
import pytest

from campo_onnx.ops.precision import Precision

NUMPY = {Precision.FP32: np.float32, Precision.FP16: np.float16, Precision.BF16: ml_dtypes.bfloat16}


@pytest.mark.parametrize("precision", Precision)
def test_limits(precision):
    info = ml_dtypes.finfo(NUMPY[precision])
    assert precision.largest == float(info.max)
    assert precision.smallest_normal == float(info.smallest_normal)
    assert precision.itemsize_bytes == np.dtype(NUMPY[precision]).itemsize
    assert onnx.helper.tensor_dtype_to_np_dtype(precision.onnx_dtype) == NUMPY[precision]
