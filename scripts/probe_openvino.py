"""Write OpenVINO's table of kernels from models of one node: ``python scripts/probe_openvino.py``.

Each operator's nodes come from the onnx package's backend cases, and from a list here where that has none. A
node is compiled in FP32 and in BF16, and the executed graph says what became of it:

native    its kernels compute in the precision, or in it with FP32 accumulation
storage   tensors are low, an elementwise kernel computes in FP32
upcast    an FP32 kernel between conversions
refused   no model of it loads

Of several nodes of an operator the worst that loads counts. Sums: 4,096 ones add up to 256 in BF16.
"""

import argparse
import csv
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from campo_onnx.errors import CampoError
from campo_onnx.ir.importer import import_model
from campo_onnx.measure.one_node import one_node_model
from campo_onnx.ops.facts import ports_of
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.ports import lowered
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import FLOAT, Signature, make_signature
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.openvino.installed import installed_version, ov
from campo_onnx.runtime.openvino.kernels import COLUMNS, RELEASE, Row
from campo_onnx.runtime.openvino.trace import PRODUCT_KINDS

TABLE = Path("campo_onnx/runtime/openvino/kernels.csv")
INT = int(TensorProto.INT64)
MICROSOFT = "com.microsoft"
ONES = 4096

_WORST = (Support.NATIVE, Support.STORAGE, Support.UPCAST)
_IDLE = frozenset({"Input", "Output", "Const", "Parameter", "Result", "Constant"})
_CONVERSIONS = frozenset({"Convert", "Reorder"})


def further() -> Iterator[Signature]:
    """Yield nodes of which the onnx package has no cases: random ones, and those of Microsoft's operators."""
    for op in ("RandomUniform", "RandomNormal"):
        drawn = {"shape": [8, 64], "dtype": FLOAT}
        yield make_signature(OpKey("", op), opset=22, inputs=[], outputs=[(FLOAT, (8, 64))], attributes=drawn)
    for op in ("RandomUniformLike", "RandomNormalLike"):
        yield make_signature(OpKey("", op), opset=22, inputs=[(FLOAT, (8, 64))], outputs=[(FLOAT, (8, 64))])
    rows, weights, bias = (8, 64), (64, 64), (64,)
    float_rows, float_bias = (FLOAT, rows), (FLOAT, bias)

    def of(op: str, inputs: list[tuple[int, tuple[int, ...]]], **attributes: Any) -> Signature:
        return make_signature(
            OpKey(MICROSOFT, op), opset=1, inputs=inputs, outputs=[float_rows], attributes=attributes
        )

    yield of("FusedMatMul", [float_rows, (FLOAT, weights)], transB=1, alpha=0.5)
    yield of("FusedGemm", [float_rows, (FLOAT, weights), float_bias], activation="Relu")
    for op in ("BiasGelu", "FastGelu"):
        yield of(op, [float_rows, float_bias])
    for op in ("Gelu", "QuickGelu"):
        yield of(op, [float_rows])
    for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"):
        tokens = (FLOAT, (2, 8, 64))
        inputs = [tokens, tokens, float_bias, *[float_bias] * (op == "SkipLayerNormalization")]
        yield make_signature(OpKey(MICROSOFT, op), opset=1, inputs=inputs, outputs=[tokens])
    for op in ("BiasSoftmax", "BiasDropout", "GatedAdd", "GeluGrad", "FastGeluGrad", "SoftmaxGrad_13"):
        yield of(op, [float_rows, float_rows])
    norm = OpKey("", "SimplifiedLayerNormalization")
    yield make_signature(norm, inputs=[float_rows, float_bias], outputs=[float_rows])


def sums() -> Iterator[Signature]:
    """Yield nodes whose first output holds a sum of 4,096 ones when all their inputs are ones."""
    line, one = (FLOAT, (1, ONES)), (FLOAT, (1, 1))
    column = (FLOAT, (ONES, 1))
    axis, depth = {1: np.asarray([1])}, {1: np.asarray(1)}

    def of(op: str, inputs: Any, output: Any, **rest: Any) -> Signature:
        return make_signature(OpKey("", op), opset=22, inputs=inputs, outputs=[output], **rest)

    yield of("MatMul", [line, column], one)
    yield of("Gemm", [line, column], one)
    yield of("Einsum", [line, column], one, attributes={"equation": "ij,jk->ik"})
    image, kernel = (FLOAT, (1, ONES // 16, 4, 4)), (FLOAT, (1, ONES // 16, 4, 4))
    yield of("Conv", [image, kernel], (FLOAT, (1, 1, 1, 1)))
    yield of("ConvTranspose", [(FLOAT, (1, ONES, 1, 1)), (FLOAT, (ONES, 1, 1, 1))], (FLOAT, (1, 1, 1, 1)))
    yield of("ReduceSum", [line, (INT, (1,))], one, constants=axis)
    yield of("CumSum", [line, (INT, ())], line, constants=depth)
    add = {"reduction": "add"}
    yield of("ScatterElements", [one, (INT, (1, ONES)), line], one, attributes=add | {"axis": 1})
    yield of("ScatterND", [one, (INT, (1, ONES, 2)), line], one, attributes=add)


def cases() -> Iterator[Signature]:
    """Yield the nodes of the onnx package's backend cases, those of the newest opsets."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        collected = collect_testcases(None)
    for case in collected:
        if case.model is None:
            continue
        try:
            view = import_model(case.model).view
        except CampoError:
            continue
        for node in view.nodes:
            signature = view.signature(node.name)
            if signature.stands_alone:  # nodes of bool and integers too: they must load
                yield signature


def compiled(signature: Signature) -> Any:
    """Compile a model of one node; None where the plugin refuses it."""
    try:
        model = one_node_model(signature, 1)
        core = ov.Core()
        return core.compile_model(
            core.read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        )
    except RuntimeError:
        return None


def support_of(signature: Signature | None, wanted: str) -> Support:
    """Say how the plugin runs a node whose tensors have a type, as OpenVINO calls it."""
    program = compiled(signature) if signature is not None else None
    if program is None:
        return Support.REFUSED
    facts = [
        {key: str(value.value) for key, value in op.get_rt_info().items() if key in _FACTS}
        for op in program.get_runtime_model().get_ordered_ops()
    ]
    nodes = [f for f in facts if f["layerType"] not in _IDLE | _CONVERSIONS]
    if wanted == "f32":
        return Support.NATIVE
    # A product's bias may be added by a kernel of its own: where it multiplies decides.
    nodes = [f for f in nodes if f["layerType"] in PRODUCT_KINDS] or nodes
    if any(f["layerType"] == "Subgraph" for f in nodes):
        return Support.STORAGE if all(f["runtimePrecision"] != "f32" for f in nodes) else Support.UPCAST
    return Support.UPCAST if any(f["runtimePrecision"] == "f32" for f in nodes) else Support.NATIVE


_FACTS = ("layerType", "runtimePrecision")


def sums_low(signature: Signature) -> bool:
    """Whether a node that sums 4,096 ones in FP32 falls far short of that in BF16."""
    totals = []
    for one in (signature, low(signature)):
        program = compiled(one) if one is not None else None
        if program is None:
            return False
        totals.append(_sum(program))
    return totals[0] >= ONES and totals[1] < ONES / 2


def _sum(program: Any) -> float:
    request, alive = program.create_infer_request(), []
    for k, port in enumerate(program.inputs):
        shape = list(port.shape)
        if port.element_type == ov.Type.bf16:
            alive.append(np.full(shape, np.float32(1).view(np.uint32) >> 16, np.uint16))
            request.set_input_tensor(k, ov.Tensor(alive[-1], port.shape, ov.Type.bf16))
        else:
            value = 0 if port.element_type.is_integral() else 1  # indices; all else is added
            request.set_input_tensor(k, ov.Tensor(np.full(shape, value, port.element_type.to_dtype())))
    request.infer()
    data = request.get_output_tensor(0).data
    if program.output(0).element_type == ov.Type.bf16:
        data = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return float(np.max(data))


def low(signature: Signature) -> Signature | None:
    """Return the node in BF16."""
    return lowered(signature, ports_of(signature, Precision.BF16), Precision.BF16)


def probe(signatures: Iterable[Signature]) -> dict[OpKey, Row]:
    """Make the rows of the table."""
    fp32: dict[OpKey, set[Support]] = defaultdict(set)
    bf16: dict[OpKey, set[Support]] = defaultdict(set)
    for signature in dict.fromkeys(signatures):
        fp32[signature.op].add(support_of(signature, "f32"))
        if low(signature) is not None:
            bf16[signature.op].add(support_of(low(signature), "bf16"))
    shortened = {signature.op for signature in sums() if sums_low(signature)}
    return {op: Row(_worst(fp32[op]), _worst(bf16[op]), op in shortened) for op in sorted(fp32)}


def _worst(supports: set[Support]) -> Support:
    return max(supports - {Support.REFUSED}, key=_WORST.index, default=Support.REFUSED)


def write(rows: dict[OpKey, Row], path: Path) -> None:
    """Write the table."""
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        for op, row in rows.items():
            lines.writerow([op.domain, op.op_type, row.fp32.value, row.bf16.value, int(row.sums_low)])


def main() -> None:
    """Probe the installed plugin and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=TABLE)
    output = parser.parse_args().output
    if "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise SystemExit("this CPU has no BF16 units, and its kernels are others")
    if installed_version() != RELEASE:
        print(f"OpenVINO is {installed_version()}: write that as RELEASE into kernels.py")
    rows = probe([*cases(), *further(), *sums()])
    write(rows, output)
    print(f"{len(rows)} operators in {output}")


if __name__ == "__main__":
    main()
