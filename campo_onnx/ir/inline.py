"""Local functions, put in the place of their calls."""

from collections.abc import Iterator
from itertools import count

import onnx
import onnx.inliner
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from campo_onnx.ir.sort import bodies


def inline_functions(model: ModelProto) -> ModelProto:
    """Replace calls of local functions by what they compute.

    A function written at another opset than the model's is converted to it. Where ONNX's converter
    cannot do that, it stays a function, and a call of it is an operator nobody knows.

    Parameters
    ----------
    model
        The model; it is not changed, and returned itself if it has no functions.
    """
    if not model.functions:
        return model
    if any(_is_of_another_opset(function, model) for function in model.functions):
        try:
            return _inlined_and_converted(model)
        except (RuntimeError, ValueError, MemoryError, onnx.shape_inference.InferenceError):
            pass  # no conversion for an operator in it, or a type that cannot be told
    return onnx.inliner.inline_local_functions(model)


def _is_of_another_opset(function: FunctionProto, model: ModelProto) -> bool:
    versions = {opset.domain: opset.version for opset in model.opset_import}
    return any(versions.get(opset.domain, opset.version) != opset.version for opset in function.opset_import)


def _inlined_and_converted(model: ModelProto) -> ModelProto:
    typed = onnx.shape_inference.infer_shapes(model)  # the converter asks for the type of every argument
    inlined = onnx.inliner.inline_local_functions(typed, convert_version=True)
    given = {value.name for value in model.graph.value_info}
    known = [value for value in inlined.graph.value_info if value.name in given]
    del inlined.graph.value_info[:]
    inlined.graph.value_info.extend(known)
    _rename_repeated(inlined.graph, _names(model))
    return inlined


def _rename_repeated(graph: GraphProto, given: set[str]) -> None:
    """Name apart what the converter adds: it calls that the same in each copy of a function.

    A copy reads only what stands before in it, so the latest tensor of a name is the one that is meant.

    Raises
    ------
    RuntimeError
        If the model itself has a tensor of that name, so that consumers could not be told apart.
    """
    taken = given | {name for node in graph.node for name in node.output}
    fresh = (name for number in count() if (name := f"converted_{number}") not in taken)
    defined: set[str] = set()
    renamed: dict[str, str] = {}
    for node in graph.node:
        for consumer in _with_bodies(node):
            consumer.input[:] = [renamed.get(name, name) for name in consumer.input]
        for position, name in enumerate(node.output):
            if not name or name not in defined:
                defined.add(name)
                continue
            if name in given:
                raise RuntimeError(f"the name {name!r} is taken")
            renamed[name] = next(fresh)
            node.output[position] = renamed[name]


def _names(model: ModelProto) -> set[str]:
    names = {value.name for value in (*model.graph.input, *model.graph.output)}
    names |= {tensor.name for tensor in model.graph.initializer}
    return names | {
        name for node in model.graph.node for inner in _with_bodies(node) for name in inner.output
    }


def _with_bodies(node: NodeProto) -> Iterator[NodeProto]:
    yield node
    for body in bodies(node):
        for inner in body.node:
            yield from _with_bodies(inner)
