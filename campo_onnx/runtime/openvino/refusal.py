"""Why OpenVINO does not load a graph: every refused operator in one message, with a form that it takes."""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from campo_onnx.errors import DeviceUnavailableError, UnsupportedModelError
from campo_onnx.runtime.openvino.kernels import computed_otherwise

_NO_RULE = re.compile(r"No conversion rule found for operations: (?P<ops>.+)")
_FAILED = re.compile(
    r"^-- (?P<op>\S+?)-\d+ with a message:\n(?P<why>(?:.*\n)*?)(?=\n|-- |Summary)", re.MULTILINE
)
_SUMMARY = re.compile(r"Conversion is failed for: (?P<ops>.+)")
_OPSET = re.compile(r"-\d+$")
_TAKES_EMPTY = re.compile("ConstantOfShape|Concat")
_TAKES_EMPTY_LIST = re.compile("Reshape|Expand|Reduce.*|Squeeze|Unsqueeze|Concat|Resize")
_NOISE = re.compile(r"^(Check '|While validating|Exception from|FrontEnd API)")
_WHERE = re.compile(r"^While validating ONNX node '<.*?>': ")
_NODE = re.compile(r"<Node\(\w+\): (?P<read>.*?)>|with friendly_name '(?P<compiled>[^']*)'")

_INSTEAD: Mapping[str, str] = {
    "Dropout": "write dropout as RandomUniformLike, Less and Where, or export in evaluation mode",
    "Bernoulli": "write it as RandomUniformLike and Less",
    "MaxUnpool": "write it as ScatterElements",
    "GatherElements": "slice the data to the size of the indices first",
    "DeformConv": "compute the samples with GridSample",
}
_MICROSOFT = "com.microsoft."
_WINDOWS = frozenset(
    {"Convolution", "ConvolutionBackpropData", "GroupConvolution", "GroupConvolutionBackpropData"}
    | {"AvgPool", "MaxPool"}
)
_SHOWN = 5
_ON_ONNX_RUNTIME = "Run the graph on ONNX Runtime (--runtime onnxruntime)."
_FP8 = tuple(kind for name, kind in TensorProto.DataType.items() if name.startswith("FLOAT8"))


def refused(error: Exception) -> UnsupportedModelError:
    """Turn OpenVINO's report into one message."""
    text = str(error)
    reasons = dict(_no_rule(text))
    # What follows an unknown operator has no shape, and fails for that.
    reasons |= {op: why for op, why in _failures(text) if op in _INSTEAD or not reasons}
    if not reasons:
        return UnsupportedModelError(
            "OpenVINO cannot read the graph",
            why=_told(text),
            remedy="Check the file with onnx.checker, and run it on ONNX Runtime (--runtime onnxruntime).",
        )
    told = "; ".join(f"{op}: {why}" for op, why in sorted(reasons.items()))
    return UnsupportedModelError(
        f"OpenVINO refuses {len(reasons)} operator{'s' * (len(reasons) > 1)} of the graph",
        why=told,
        remedy=" ".join(_remedies(reasons)),
    )


def not_compiled(error: Exception) -> UnsupportedModelError:
    """Turn OpenVINO's report on a graph that it has read into one message."""
    return UnsupportedModelError(
        "OpenVINO reads the graph and fails to compile it",
        why=_told(str(error)),
        remedy="The file may be sound: OpenVINO rewrites a graph before it compiles it. " + _ON_ONNX_RUNTIME,
    )


def refuse_types(model: onnx.ModelProto, units: Container[str], cpu: str) -> None:
    """Refuse a graph whose types the plugin would not compute in.

    `units` are types that the plugin computes in on this CPU: its property ``OPTIMIZATION_CAPABILITIES``.
    """
    if place := _first_of_type(model, TensorProto.FLOAT16):
        raise UnsupportedModelError(
            "OpenVINO's CPU plugin does not run FP16",
            why=f"it removes FP16 types without rounding and computes in FP32, and {place} is FP16",
            remedy="Plan with --precision bf16, or run the graph on ONNX Runtime (--runtime onnxruntime).",
        )
    for kind in _FP8:
        if place := _first_of_type(model, kind):
            raise UnsupportedModelError(
                "OpenVINO's CPU plugin does not run FP8",
                why=f"it rounds to FP8 otherwise than ONNX, and {place} is {TensorProto.DataType.Name(kind)}",
                remedy=_ON_ONNX_RUNTIME,
            )
    if "BF16" not in units and (place := _first_of_type(model, TensorProto.BFLOAT16)):
        raise DeviceUnavailableError(
            f"OpenVINO does not run BF16 on this machine's {cpu}",
            why="the CPU has no BF16 units (AVX512_BF16 or AMX), or a hypervisor hides them, and "
            f"{place} is BF16",
            remedy="Run it on a CPU that has them, or run the FP32 graph here.",
        )


def refuse_forms(model: onnx.ModelProto, folder: Path | None) -> None:
    """Refuse a graph with nodes that the plugin loads, and computes otherwise than ONNX says."""
    if nodes := computed_otherwise(model, folder):
        raise UnsupportedModelError(
            f"OpenVINO computes {len(nodes)} node{'s' * (len(nodes) > 1)} otherwise than ONNX",
            why=_some(nodes),
            remedy=_ON_ONNX_RUNTIME,
        )


def refuse_empty(model: onnx.ModelProto, graph: Any) -> None:
    """Refuse tensors without elements, of which the plugin makes one element, or crashes.

    `graph` is the same as an ``openvino.Model`` that was read. Constants without elements are scalars in it.
    """
    empty = {constant.name for constant in model.graph.initializer if 0 in constant.dims}
    empty |= {n.output[0] for n in model.graph.node for a in n.attribute if 0 in a.t.dims}
    readers = (n for n in model.graph.node if not empty.isdisjoint(n.input))
    problems = [
        f"{n.name!r} ({n.op_type}) reads one"
        for n in readers
        if not (_TAKES_EMPTY if n.input[0] in empty else _TAKES_EMPTY_LIST).fullmatch(n.op_type)
    ]
    problems += [f"{v.name!r} is one, and returned" for v in model.graph.output if v.name in empty]
    for node in graph.get_ops():
        for output in node.outputs():
            shape = output.get_partial_shape()
            is_list = output.get_element_type().is_integral_number()
            if shape.is_static and 0 in shape.to_shape() and not is_list:
                problems.append(f"{node.get_friendly_name()!r} gives one of the shape {shape}")
    if problems:
        raise UnsupportedModelError(
            "OpenVINO does not run tensors without elements", why=problems[0], remedy=_ON_ONNX_RUNTIME
        )


def refuse_open_windows(graph: Any) -> None:
    """Refuse windows over images whose sizes data decide: some end the process, or read what memory holds.

    So do images that are resized, if only their number is decided like that, and recurrent layers over rows
    that data pick, with as many states as there were rows.

    Such forms are told by those sizes, and written otherwise where they are known.
    """
    from campo_onnx.runtime.openvino.convolutions import has_open_window
    from campo_onnx.runtime.openvino.rewriting import with_bodies_of

    nodes = [
        f"{node.get_friendly_name()!r} ({node.get_type_name()})"
        for body in with_bodies_of(graph)
        for node in body.get_ops()
        if (node.get_type_name() in _WINDOWS and has_open_window(node))
        or _is_resized(node)
        or _has_states_of_another_batch(node)
    ]
    if nodes:
        raise UnsupportedModelError(
            "OpenVINO does not run windows, resizes and recurrent layers of sizes that data decide",
            why=_some(nodes),
            remedy="Pad the images to one size, or run the graph on ONNX Runtime (--runtime onnxruntime).",
        )


def _is_resized(node: Any) -> bool:
    """Say whether images are resized of which some size, or how many they are, is known when a step runs."""
    return node.get_type_name() == "Interpolate" and bool(node.input(0).get_partial_shape().is_dynamic)


def _has_states_of_another_batch(node: Any) -> bool:
    if not node.get_type_name().endswith("Sequence"):
        return False
    rows, *states = [port.get_partial_shape() for port in node.inputs()[:-3]]  # weights and biases come last
    return bool(rows[0].is_dynamic) and any(state[0].is_static for state in states)


def _some(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:_SHOWN]) + ", ..." * (len(nodes) > _SHOWN)


def _first_of_type(model: onnx.ModelProto, dtype: int) -> str:
    """Describe the first place of a type in a graph; empty if it holds none."""
    places = chain(_of_type(model.graph, dtype), *(_made_by(f.node, dtype) for f in model.functions))
    return next(places, "")


def _no_rule(text: str) -> Iterator[tuple[str, str]]:
    for match in _NO_RULE.finditer(text):
        for op in match["ops"].split(","):
            yield _OPSET.sub("", op.strip()), "unknown to it"


def _failures(text: str) -> Iterator[tuple[str, str]]:
    for match in _SUMMARY.finditer(text):
        for op in match["ops"].split(","):
            yield _OPSET.sub("", op.strip()), "it cannot convert it"
    for match in _FAILED.finditer(text):
        if match["why"].strip():
            yield match["op"], _told(match["why"])


def _remedies(ops: Iterable[str]) -> Iterator[str]:
    forms = [f"{op}: {_INSTEAD[op]}" for op in sorted(ops) if op in _INSTEAD]
    if forms:
        yield f"Instead: {'; '.join(forms)}."
    if any(op.startswith(_MICROSOFT) for op in ops):
        yield "Export the step without a target, which writes no com.microsoft operators."
    yield "ONNX Runtime may run the graph as it is (--runtime onnxruntime)."


def _told(text: str) -> str:
    """The last sentence of a report, and the node that it is about, where it names one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    sentences = [line for line in lines if not _NOISE.match(line)] or lines or ["no reason is told"]
    names = [match["read"] or match["compiled"] for match in _NODE.finditer(text)]
    sentence = _WHERE.sub("", sentences[-1]).rstrip(".")
    return f"at {names[0]!r}: {sentence}" if names else sentence


def _of_type(graph: GraphProto, dtype: int) -> Iterator[str]:
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            if value.type.tensor_type.elem_type == dtype:
                yield f"{kind} {value.name!r}"
    for constant in graph.initializer:
        if constant.data_type == dtype:
            yield f"constant {constant.name!r}"
    yield from _made_by(graph.node, dtype)


def _made_by(nodes: Iterable[NodeProto], dtype: int) -> Iterator[str]:
    """Nodes that make a type by themselves: all others only pass it on."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.INT and attribute.name in ("to", "dtype", "output_dtype"):
                makes = attribute.i == dtype
            else:
                makes = attribute.t.data_type == dtype
            if makes:
                yield f"{node.name or node.op_type!r} ({node.op_type})"
            if attribute.HasField("g"):
                yield from _of_type(attribute.g, dtype)
