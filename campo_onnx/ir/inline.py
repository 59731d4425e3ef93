"""Local functions, put in the place of their calls."""

from copy import deepcopy
from itertools import count

import onnx
import onnx.inliner
from onnx import FunctionProto, GraphProto, ModelProto

from campo_onnx.ir.proto import replace_items
from campo_onnx.ir.sort import fresh, with_bodies


def inline_functions(model: ModelProto) -> ModelProto:
    """Replace calls of local functions by what they compute.

    A function written at another opset than the model's is converted to it. Where ONNX's converter
    cannot do that, it stays a function, and a call of it is an operator nobody knows.

    `model`: the model; it is not changed, and returned itself if it has no functions.
    """
    if not model.functions:
        return model
    if any(function.attribute or function.attribute_proto for function in model.functions):
        model = _with_defaults(model)
    if any(_is_of_another_opset(function, model) for function in model.functions):
        try:
            return _inlined_and_converted(model)
        except (RuntimeError, ValueError, MemoryError, onnx.shape_inference.InferenceError):
            pass  # no conversion for an operator in it, or a type that cannot be told
    return onnx.inliner.inline_local_functions(model)


def _with_defaults(model: ModelProto) -> ModelProto:
    """Write the default attributes of functions into their calls: the inliner leaves them out.

    A call may leave out an attribute without a default as well. It is then absent wherever the function
    refers to it, also where that is a call whose own default applies: such a call gets a copy of the function
    without these references.
    """
    copy = deepcopy(model)
    functions = {_key(function): function for function in copy.functions}
    taken = {function.name for function in copy.functions}
    without: dict[tuple[tuple[str, str, str], tuple[str, ...]], str] = {}
    pending = [copy.graph.node, *(function.node for function in copy.functions)]
    while pending:
        for node in with_bodies(pending.pop()):
            function = functions.get((node.domain, node.op_type, node.overload))
            if function is None:
                continue
            named = {attribute.name for attribute in node.attribute}
            node.attribute.extend(a for a in function.attribute_proto if a.name not in named)
            absent = tuple(name for name in function.attribute if name not in named)
            if not absent:
                continue
            if (_key(function), absent) not in without:
                shorter = _without(
                    function, absent, fresh(f"{function.name}_without_{'_'.join(absent)}", taken)
                )
                copy.functions.append(shorter)
                functions[_key(shorter)] = copy.functions[-1]
                without[_key(function), absent] = shorter.name
                pending.append(copy.functions[-1].node)
            node.op_type = without[_key(function), absent]
    return copy


def _key(function: FunctionProto) -> tuple[str, str, str]:
    return function.domain, function.name, function.overload


def _without(function: FunctionProto, absent: tuple[str, ...], name: str) -> FunctionProto:
    """Copy a function under another name, without some attributes and the references to them."""
    copy = deepcopy(function)
    copy.name = name
    copy.attribute[:] = [attribute for attribute in function.attribute if attribute not in absent]
    for node in with_bodies(copy.node):
        for attribute in [a for a in node.attribute if a.ref_attr_name in absent]:
            node.attribute.remove(attribute)
    return copy


def _is_of_another_opset(function: FunctionProto, model: ModelProto) -> bool:
    versions = {opset.domain: opset.version for opset in model.opset_import}
    return any(versions.get(opset.domain, opset.version) != opset.version for opset in function.opset_import)


def _inlined_and_converted(model: ModelProto) -> ModelProto:
    typed = onnx.shape_inference.infer_shapes(model)  # the converter asks for the type of every argument
    inlined = onnx.inliner.inline_local_functions(typed, convert_version=True)
    declared = {value.name for value in model.graph.value_info}
    values = [value for value in inlined.graph.value_info if value.name in declared]
    replace_items(inlined.graph.value_info, values)
    _rename_repeated(inlined.graph, _names(model))
    return inlined


def _rename_repeated(graph: GraphProto, reserved: set[str]) -> None:
    """Name apart what the converter adds: it calls that the same in each copy of a function.

    A copy reads only what stands before in it, so the latest tensor of a name is the one that is meant.

    Raises RuntimeError if the model itself has a tensor of that name, so that consumers could not be told
    apart.
    """
    taken = reserved | {name for node in graph.node for name in node.output}
    fresh = (name for number in count() if (name := f"converted_{number}") not in taken)
    defined: set[str] = set()
    renamed: dict[str, str] = {}
    for node in graph.node:
        for consumer in with_bodies([node]):
            consumer.input[:] = [renamed.get(name, name) for name in consumer.input]
        for position, name in enumerate(node.output):
            if not name or name not in defined:
                defined.add(name)
                continue
            if name in reserved:
                raise RuntimeError(f"the name {name!r} is taken")
            renamed[name] = next(fresh)
            node.output[position] = renamed[name]


def _names(model: ModelProto) -> set[str]:
    names = {value.name for value in (*model.graph.input, *model.graph.output)}
    names |= {tensor.name for tensor in model.graph.initializer}
    return names.union(*(node.output for node in with_bodies(model.graph.node)))
