"""Why OpenVINO does not load a graph: every refused operator in one message, with a form that it takes."""

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import chain

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from campo_onnx.errors import DeviceUnavailableError, UnsupportedModelError

_NO_RULE = re.compile(r"No conversion rule found for operations: (?P<ops>.+)")
_FAILED = re.compile(
    r"^-- (?P<op>\S+?)-\d+ with a message:\n(?P<why>(?:.*\n)*?)(?=\n|-- |Summary)", re.MULTILINE
)
_SUMMARY = re.compile(r"Conversion is failed for: (?P<ops>.+)")
_OPSET = re.compile(r"-\d+$")
_NOISE = re.compile(r"^(Check '|While validating|Exception from|FrontEnd API)")

_INSTEAD: Mapping[str, str] = {
    "Dropout": "write dropout as RandomUniformLike, Less and Where, or export in evaluation mode",
    "Bernoulli": "write it as RandomUniformLike and Less",
    "MaxUnpool": "write it as ScatterElements",
    "GatherElements": "slice the data to the size of the indices first",
    "DeformConv": "compute the samples with GridSample",
}
_MICROSOFT = "com.microsoft."


def refused(error: Exception) -> UnsupportedModelError:
    """Turn OpenVINO's report into one message."""
    text = str(error)
    reasons = dict(_no_rule(text))
    # What follows an unknown operator has no shape, and fails for that.
    reasons |= {op: why for op, why in _failures(text) if op in _INSTEAD or not reasons}
    if not reasons:
        return UnsupportedModelError(
            "OpenVINO cannot load the graph",
            why=_last_line(text),
            remedy="Check the file with onnx.checker, and run it on ONNX Runtime (--runtime onnxruntime).",
        )
    told = "; ".join(f"{op}: {why}" for op, why in sorted(reasons.items()))
    return UnsupportedModelError(
        f"OpenVINO refuses {len(reasons)} operator{'s' * (len(reasons) > 1)} of the graph",
        why=told,
        remedy=" ".join(_remedies(reasons)),
    )


def refuse_types(model: onnx.ModelProto, units: Container[str], cpu: str) -> None:
    """Refuse a graph whose types the plugin would not compute in.

    Parameters
    ----------
    units
        Types that the plugin computes in on this CPU: its property ``OPTIMIZATION_CAPABILITIES``.

    Raises
    ------
    UnsupportedModelError
        If a tensor or a Cast of it is FP16; the message names the first.
    DeviceUnavailableError
        If one is BF16, and the CPU multiplies no BF16 numbers.
    """
    if place := _first_of_type(model, TensorProto.FLOAT16):
        raise UnsupportedModelError(
            "OpenVINO's CPU plugin does not run FP16",
            why=f"it removes FP16 types without rounding and computes in FP32, and {place} is FP16",
            remedy="Plan with --precision bf16, or run the graph on ONNX Runtime (--runtime onnxruntime).",
        )
    if "BF16" not in units and (place := _first_of_type(model, TensorProto.BFLOAT16)):
        raise DeviceUnavailableError(
            f"OpenVINO does not run BF16 on this machine's {cpu}",
            why="the CPU has no BF16 units (AVX512_BF16 or AMX), or a hypervisor hides them, and "
            f"{place} is BF16",
            remedy="Run it on a CPU that has them, or run the FP32 graph here.",
        )


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
        lines = [line.strip() for line in match["why"].splitlines() if line.strip()]
        told = [line for line in lines if not _NOISE.match(line)]
        if told:
            yield match["op"], told[-1].rstrip(".")


def _remedies(ops: Iterable[str]) -> Iterator[str]:
    forms = [f"{op}: {_INSTEAD[op]}" for op in sorted(ops) if op in _INSTEAD]
    if forms:
        yield f"Instead: {'; '.join(forms)}."
    if any(op.startswith(_MICROSOFT) for op in ops):
        yield "Export the step without a target, which writes no com.microsoft operators."
    yield "ONNX Runtime may run the graph as it is (--runtime onnxruntime)."


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not _NOISE.match(line)]
    return (told or lines or ["no reason is told"])[-1].rstrip(".")


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
