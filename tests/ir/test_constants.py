"""External data, and what a low precision would lose of a constant."""

import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from campo_onnx.errors import ModelError
from campo_onnx.ir import constants
from campo_onnx.ir.constants import chunks, constants_of, external_data, loss_in
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
    assert loss_in(FP16, outside(dims=(elements,)), tmp_path) is None
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < elements * 4


def test_an_inline_tensor_of_the_wrong_size_is_a_model_error():
    damaged = inline(1, 2, 3)
    damaged.dims[0] = 5
    with pytest.raises(ModelError, match="'c' is damaged"):
        list(chunks(damaged, None))


# --- loss ---


@pytest.mark.parametrize(
    ("values", "lost", "overflows"),
    [
        ((1e-8,), 1e-8, False),
        ((1.0, -1e-5), 1e-5, False),
        ((-3.4e38,), 3.4e38, True),
        ((65505.0,), 65505.0, True),
        ((1.0, 2.0, 1e6) * 100, 1e6, True),
        ((1e-6,) * 100, 1e-6, False),
    ],
)
def test_what_fp16_loses(values, lost, overflows):
    loss = loss_in(FP16, inline(*values), None)
    assert loss is not None
    assert (loss.tensor, loss.overflows) == ("c", overflows)
    assert loss.value == pytest.approx(lost)


@pytest.mark.parametrize(
    "values",
    [
        (),
        (0.0, 1.0, -2.5),
        (65504.0,),
        (2.0**-14,),
        (float("inf"), float("-inf"), float("nan")),
        (1e-6, 1.0) * 50,  # small ones beside large ones are lost in every sum anyway
        (0.0,) * 100,
    ],
)
def test_what_fp16_holds(values):
    assert loss_in(FP16, inline(*values), None) is None


def test_the_last_chunk_of_a_large_tensor_is_not_a_small_tensor(monkeypatch):
    monkeypatch.setattr(constants, "_CHUNK_ELEMENTS", 20)
    assert loss_in(FP16, inline(*(1.0,) * 20, 1e-8), None) is None
    loss = loss_in(FP16, inline(*(1e-8,) * 21), None)
    assert loss.value == pytest.approx(1e-8)


def test_bf16_has_the_range_of_fp32():
    assert loss_in(BF16, inline(1e-8, -3.38e38), None) is None
    assert loss_in(BF16, inline(-3.4e38), None).overflows


def test_constants_of_a_graph(model_text):
    graph = model_text("""g (float[2] x) => (float[2] y) <float w = {3}> {
        a = Constant<value = float[1] {1.5}>()
        b = Constant<value_float = 2.5>()
        c = Constant<value_floats = [1.0, 2.0]>()
        d = Constant<value_ints = [1, 2]>()
        e = Constant<value_string = "no number">()
        y = Add(x, a)
    }""").graph
    found = {name: numpy_helper.to_array(tensor) for name, tensor in constants_of(graph).items()}
    assert found.keys() == {"w", "a", "b", "c", "d"}
    assert found["b"] == np.float32(2.5)
    assert found["b"].dtype == np.float32
    assert found["d"].dtype == np.int64
    assert all(tensor.name == name for name, tensor in constants_of(graph).items())


def test_reading_leaves_the_graph_alone(model_text):
    model = model_text("g (float x) => (float y) { a = Constant<value = float {1}>() y = Add(x, a) }")
    before = model.SerializeToString()
    constants_of(model.graph)["a"].name = "other"
    assert model.SerializeToString() == before
    onnx.checker.check_model(model)
