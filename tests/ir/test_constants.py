"""External data, and what a low precision would lose of a constant."""

import tracemalloc

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from campo_onnx.errors import ModelError
from campo_onnx.ir.constants import chunks, external_data
from campo_onnx.ir.statistics import statistics_of
from campo_onnx.ops.precision import Precision

FP16, BF16 = Precision.FP16, Precision.BF16


def outside(dims=(4,), dtype=TensorProto.FLOAT, **entries):
    tensor = TensorProto(name="w", data_type=dtype, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in ({"location": "w.bin"} | entries).items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def inline(*values, dtype=np.float32):
    return numpy_helper.from_array(np.array(values, dtype), "c")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "w.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())
    (tmp_path / "secret").write_bytes(b"\0" * 64)
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"offset": 8}, [2, 3, 4, 5]),
        ({"offset": 16, "length": 16}, [4, 5, 6, 7]),
        ({"offset": 4, "length": 16, "checksum": "ab"}, [1, 2, 3, 4]),
    ],
)
def test_external_data_is_found(folder, entries, expected):
    assert np.concatenate(list(chunks(outside(**entries), folder))).tolist() == expected


def test_empty_and_scalar_tensors(folder):
    assert list(chunks(outside(dims=(0, 3)), folder)) == []
    (scalar,) = chunks(outside(dims=()), folder)
    assert scalar.tolist() == [0.0]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "gone.bin"}, r"gone\.bin of initializer 'w' is missing"),
        ({"location": "../secret"}, "outside the model's folder"),
        ({"location": "/etc/passwd"}, "outside the model's folder"),
        ({"location": ""}, "outside the model's folder"),
        ({"offset": 20}, r"it has 32 bytes, 36 are needed"),
        ({"offset": -4}, "misstates its data"),
        ({"offset": "abc"}, "misstates its data"),
        ({"length": 8}, "it says 8 bytes from byte 0, and 16 bytes are its size"),
    ],
)
def test_external_data_that_is_not_there(folder, entries, message):
    with pytest.raises(ModelError, match=message):
        external_data(outside(**entries), folder)


def test_a_link_out_of_the_folder_is_refused(folder):
    (folder / "link.bin").symlink_to(folder.parent / "secret")
    with pytest.raises(ModelError, match="outside the model's folder"):
        external_data(outside(location="link.bin"), folder)


def test_a_model_in_memory_has_no_folder():
    with pytest.raises(ModelError, match="passed in memory"):
        external_data(outside(), None)


def test_external_data_is_never_loaded_whole(tmp_path):
    elements = 1 << 24
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(elements * 4)
    tracemalloc.start()
    assert statistics_of(outside(dims=(elements,)), tmp_path).largest == 0.0
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < elements * 4


def test_an_inline_tensor_of_the_wrong_size_is_a_model_error():
    damaged = inline(1, 2, 3)
    damaged.dims[0] = 5
    with pytest.raises(ModelError, match="'c' is damaged"):
        list(chunks(damaged, None))
