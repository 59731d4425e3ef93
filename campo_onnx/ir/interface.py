"""Inputs and outputs of two graphs, compared."""

from collections.abc import Iterator

from onnx import TensorProto, helper

from campo_onnx.ir.view import GraphView, TensorInfo


def differences(first: GraphView, other: GraphView) -> Iterator[str]:
    """Say how inputs and outputs of two graphs differ in name, type or shape; their order may differ."""
    for kind, ours, theirs in (
        ("input", first.inputs, other.inputs),
        ("output", first.outputs, other.outputs),
    ):
        for name in ours:
            if name not in theirs:
                yield f"the second has no {kind} {name!r}"
            elif _type(first.tensors[name]) != _type(other.tensors[name]):
                there, here = _type(other.tensors[name]), _type(first.tensors[name])
                yield f"the {kind} {name!r} is {here} in the first and {there} in the second"
        for name in theirs:
            if name not in ours:
                yield f"the first has no {kind} {name!r}"


def _type(info: TensorInfo) -> str:
    kind = TensorProto.DataType.Name(info.dtype).lower()
    if info.dtype not in (TensorProto.UNDEFINED, TensorProto.STRING):
        kind = str(helper.tensor_dtype_to_np_dtype(info.dtype))
    return f"{kind}{'[...]' if info.shape is None else list(info.shape)}"
