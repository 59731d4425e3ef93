"""Formats: their limits against NumPy and ml_dtypes, and one object for each."""

import copy
import dataclasses
import pickle

import ml_dtypes
import numpy as np
import onnx
import pytest

from campo_onnx.files import codec
from campo_onnx.ops.precision import (
    Precision,
    low_precision_of,
    low_precisions,
    precisions,
    temporary_precision,
)

NUMPY = {Precision.FP32: np.float32, Precision.FP16: np.float16, Precision.BF16: ml_dtypes.bfloat16}


@pytest.mark.parametrize("precision", precisions(), ids=str)
def test_limits(precision):
    info = ml_dtypes.finfo(NUMPY[precision])
    assert precision.largest == float(info.max)
    assert precision.smallest_normal == float(info.smallest_normal)
    assert precision.fraction_bits == info.nmant
    assert precision.itemsize_bytes == np.dtype(NUMPY[precision]).itemsize
    assert onnx.helper.tensor_dtype_to_np_dtype(precision.onnx_dtype) == NUMPY[precision]


def test_a_name_stands_for_one_object():
    assert Precision("fp16") is Precision.FP16
    assert pickle.loads(pickle.dumps(Precision.BF16)) is copy.deepcopy(Precision.BF16) is Precision.BF16
    with pytest.raises(ValueError, match="unknown precision 'fp8', known: fp32, fp16, bf16"):
        Precision("fp8")


def test_a_format_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Precision.FP16.largest = 1.0


def test_files_hold_the_name():
    assert codec.to_plain({"low": Precision.FP16}) == {"low": "fp16"}
    assert codec.from_plain("bf16", Precision) is Precision.BF16
    with pytest.raises(codec.DecodeError, match="unknown precision 'fp8', known: fp32, fp16, bf16"):
        codec.from_plain("fp8", Precision)


def test_low_ones_are_narrower_than_fp32():
    assert low_precisions() == (Precision.FP16, Precision.BF16)
    assert low_precision_of(Precision.BF16.onnx_dtype) is Precision.BF16
    assert low_precision_of(Precision.FP32.onnx_dtype) is None


def test_what_schemas_call_a_tensor():
    admitted = onnx.defs.get_schema("MatMul").type_constraints[0].allowed_type_strs
    assert {precision.tensor_type for precision in precisions()} <= set(admitted)


def test_a_format_for_the_length_of_a_block():
    info = ml_dtypes.finfo(ml_dtypes.float8_e5m2)
    facts = {
        "onnx_dtype": int(onnx.TensorProto.FLOAT8E5M2),
        "onnx_name": "float8e5m2",
        "itemsize_bytes": 1,
        "fraction_bits": int(info.nmant),
        "largest": float(info.max),
        "smallest_normal": float(info.smallest_normal),
    }
    with temporary_precision("e5m2", **facts) as toy:
        assert Precision("e5m2") is toy
        assert toy in low_precisions()
        assert toy.tensor_type == "tensor(float8e5m2)"
        with (
            pytest.raises(ValueError, match="registered twice"),
            temporary_precision("e5m2", **facts),
        ):
            pass
    assert toy not in precisions()
