"""Low versions of constants: rounded here, or described for the exporter."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from campo_onnx.errors import ModelError
from campo_onnx.ir.convert import SOURCE_TYPE_KEY, converted, with_conversions
from campo_onnx.ops.precision import Precision


@pytest.mark.parametrize(
    ("precision", "dtype"), [(Precision.FP16, np.float16), (Precision.BF16, ml_dtypes.bfloat16)]
)
def test_rounding_is_to_nearest_even(precision, dtype):
    values = np.array([1.0, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-9, -1e-8, np.inf, 0.1], np.float32)
    low = converted(numpy_helper.from_array(values.reshape(1, 7), "w"), "w_low", precision, None)
    assert (low.name, low.data_type, list(low.dims)) == ("w_low", precision.onnx_dtype, [1, 7])
    np.testing.assert_array_equal(numpy_helper.to_array(low), values.astype(dtype).reshape(1, 7))
    if precision is Precision.FP16:
        assert numpy_helper.to_array(low)[0, 1] == 1.0  # a tie goes to even
        assert numpy_helper.to_array(low)[0, 2] == np.float16(1 + 2**-9)


@pytest.fixture
def outside():
    tensor = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "8"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def test_external_data_is_described_not_read(outside, tmp_path):
    (tmp_path / "w.bin").write_bytes(b"\0" * 24)
    low = converted(outside, "w_fp16", Precision.FP16, tmp_path)
    entries = {entry.key: entry.value for entry in low.external_data}
    assert low.data_type == TensorProto.FLOAT16
    assert not low.raw_data
    assert entries == {"location": "w.bin", "offset": "8", "length": "16", SOURCE_TYPE_KEY: "1"}
    assert outside.data_type == TensorProto.FLOAT


def test_missing_external_data_is_found_out_early(outside, tmp_path):
    with pytest.raises(ModelError, match="is missing"):
        converted(outside, "w_fp16", Precision.FP16, tmp_path)


def test_what_is_described_is_converted_where_it_is_needed(outside, tmp_path):
    values = np.array([1.0, 1 / 3, 6e4, -1e-9], np.float32)
    (tmp_path / "w.bin").write_bytes(b"\0" * 8 + values.tobytes())
    low = converted(outside, "w_fp16", Precision.FP16, tmp_path)
    outer = onnx.ModelProto(graph=onnx.GraphProto(initializer=[low, outside]))
    model = with_conversions(outer, tmp_path)
    np.testing.assert_array_equal(
        numpy_helper.to_array(model.graph.initializer[0]), values.astype(np.float16)
    )
    assert model.graph.initializer[1] == outside
    assert outer.graph.initializer[0] == low
    assert with_conversions(onnx.ModelProto(), None) == onnx.ModelProto()
