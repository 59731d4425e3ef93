"""Ways to break an ONNX model: its messages, where its data lies, its bodies, its names."""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import Message

from tests.fuzz.hostile import HOSTILE_FLOATS, HOSTILE_INTS, HOSTILE_TEXTS

_OPS = ("Relu", "MatMul", "Cast", "If", "Loop", "Scan", "Constant", "Reshape", "EyeLike", "Range", "Expand")


def protobuf(path: Path, rng: random.Random) -> str:
    """Break a model in place; returns how."""
    model = onnx.load(path, load_external_data=False)
    ways = [_change_message] * 4 + [_point_outside, _nest, _rename, _enlarge]
    done = [rng.choice(ways)(model, rng) for _ in range(rng.choice((1, 1, 2, 5)))]
    path.write_bytes(model.SerializeToString())
    return ", ".join(done)


def _change_message(model: onnx.ModelProto, rng: random.Random) -> str:
    message: Message = model
    where = "model"
    # Walk down, mostly into the graph, and change something there.
    while True:
        inner = [
            (field, value)
            for field, value in message.ListFields()
            if field.type == field.TYPE_MESSAGE and (not field.is_repeated or len(value))
        ]
        if not inner or (rng.random() < 0.25 and message is not model):
            break
        field, value = rng.choice(inner)
        if message is model and model.HasField("graph") and rng.random() < 0.8:
            field, value = next(pair for pair in inner if pair[0].name == "graph")
        where += f".{field.name}"
        if field.is_repeated:
            if rng.random() < 0.15:
                return f"{where} {_change_repeated(value, rng)}"
            value = rng.choice(list(value))
        message = value
    field = rng.choice(list(message.DESCRIPTOR.fields))
    with suppress(TypeError, ValueError, AttributeError):
        _change_field(message, field, rng)
    return f"{where}.{field.name}"


def _point_outside(model: onnx.ModelProto, rng: random.Random) -> str:
    """Let a constant lie in a file, at a place that may not be one."""
    if not model.graph.initializer:
        model.graph.initializer.add(name="stray", data_type=1, dims=[4])
    tensor = rng.choice(list(model.graph.initializer))
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    numbers = [str(n) for n in HOSTILE_INTS] + ["9" * 5000, "1e3", " 1", "", "\u0661", "0x10"]
    files = (
        *HOSTILE_TEXTS,
        "w.bin",
        "w.bin/../w.bin",
        "step.onnx",
        ".",
        "..",
        "a/b",
        "link.bin",
        "\\x",
        "C:x",
    )
    for key, values in (("location", files), ("offset", numbers), ("length", numbers), ("checksum", files)):
        if rng.random() < 0.7:
            with suppress(ValueError):
                tensor.external_data.add(key=key, value=rng.choice(values))
    return f"outside {tensor.name[:20]}"


def _nest(model: onnx.ModelProto, rng: random.Random) -> str:
    """Put bodies into bodies, or let functions call each other."""
    depth = rng.choice((2, 9, 20))
    if rng.random() < 0.5:
        body = onnx.GraphProto(name="deepest")
        for _ in range(depth):
            outer = onnx.GraphProto(name="b")
            node = outer.node.add(op_type=rng.choice(("If", "Loop", "Scan")), input=["c"], output=["o"])
            for name in ("then_branch", "else_branch"):
                node.attribute.add(name=name, type=onnx.AttributeProto.GRAPH).g.CopyFrom(body)
                if depth > 9:
                    break
            body = outer
        model.graph.node.extend(body.node)
        return f"{depth} bodies"
    for number in range(depth):
        function = model.functions.add(domain="f", name=f"f{number}", input=["x"], output=["y"])
        function.opset_import.add(domain="f", version=1)
        for _ in range(2):
            called = f"f{rng.choice((number + 1, number + 1, rng.randrange(depth)))}"
            function.node.add(op_type=called, domain="f", input=["x"], output=["y"])
    model.graph.node.add(op_type="f0", domain="f", input=["x"], output=["z"])
    model.opset_import.add(domain="f", version=1)
    return f"{depth} functions"


def _rename(model: onnx.ModelProto, rng: random.Random) -> str:
    """Give a node, a tensor or a dimension a hostile name, everywhere the same."""
    graph, text = model.graph, rng.choice([text for text in HOSTILE_TEXTS if text != "\ud800"])
    if rng.random() < 0.3 and graph.node:
        rng.choice(list(graph.node)).name = text
        return "node renamed"
    values = [*graph.input, *graph.output]
    if not values:
        return "nothing to rename"
    value = rng.choice(values)
    if rng.random() < 0.3:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = text
        return "dimension renamed"
    old, value.name = value.name, text
    for node in graph.node:
        node.input[:] = [text if name == old else name for name in node.input]
        node.output[:] = [text if name == old else name for name in node.output]
    return "tensor renamed"


def _enlarge(model: onnx.ModelProto, rng: random.Random) -> str:
    """Claim another size, everywhere the same; or add arithmetic on one long dimension."""
    graph = model.graph
    size = rng.choice((1_000_000_000, 10**12, *HOSTILE_INTS))
    if rng.random() < 0.3:
        graph.input.add(name="long").type.tensor_type.elem_type = (kind := rng.choice((1, 7, 10)))
        graph.input[-1].type.tensor_type.shape.dim.add(dim_value=size)
        graph.node.add(op_type=rng.choice(("Mul", "Add", "Sub")), input=["long", "long"], output=["longer"])
        graph.node.add(op_type="Cast", input=["longer"], output=["cast"]).attribute.add(
            name="to", type=onnx.AttributeProto.INT, i=8 - kind if kind != 10 else 1
        )
        return f"{size} elements"
    declared = (*graph.input, *graph.output, *graph.value_info)
    dims = [dim for value in declared for dim in value.type.tensor_type.shape.dim if dim.dim_value]
    if dims:
        declared_size = rng.choice(dims).dim_value
        for dim in dims:
            if dim.dim_value == declared_size:
                dim.dim_value = size
    return f"sizes of {size}"


def _change_repeated(values: Any, rng: random.Random) -> str:
    at = rng.randrange(len(values))
    match rng.randrange(4):
        case 0:
            del values[at]
            return "removed"
        case 1:
            values.add().CopyFrom(values[at])
            return "doubled"
        case 2:
            other = rng.randrange(len(values))
            kept = type(values[at])()
            kept.CopyFrom(values[at])
            values[at].CopyFrom(values[other])
            values[other].CopyFrom(kept)
            return "swapped"
        case _:
            values[at].MergeFrom(values[rng.randrange(len(values))])
            return "merged"


def _change_field(message: Message, field: Any, rng: random.Random) -> None:
    if rng.random() < 0.2 or field.type == field.TYPE_MESSAGE:
        message.ClearField(field.name)
        return
    value: Any = rng.choice(HOSTILE_INTS)
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        value = rng.choice(HOSTILE_FLOATS)
    elif field.type == field.TYPE_STRING:
        value = rng.choice((*HOSTILE_TEXTS, *_OPS))
    elif field.type == field.TYPE_BYTES:
        value = rng.choice((b"", b"\xff", rng.randbytes(8), b"SUM"))
    elif field.type == field.TYPE_ENUM:
        value = rng.randrange(-1, 30)
    elif field.type in (field.TYPE_INT32, field.TYPE_ENUM):
        value = max(-(2**31), min(2**31 - 1, value))
    if not field.is_repeated:
        setattr(message, field.name, value)
    elif len(getattr(message, field.name)) and rng.random() < 0.7:
        values = getattr(message, field.name)
        values[rng.randrange(len(values))] = value
    else:
        getattr(message, field.name).append(value)
