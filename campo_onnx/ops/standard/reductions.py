"""Reductions, scans along an axis, pooling, and scatters, which may add."""

from campo_onnx.ops.signature import Signature, TensorType
from campo_onnx.ops.spec import Ask, Family, FixedPorts, specs
from campo_onnx.ops.work import Stream


def _pool_gradient_types(signature: Signature) -> list[TensorType]:
    return [TensorType(signature.input(0).dtype)]  # the pooled tensor does not tell the input's size


def _results(signature: Signature) -> tuple[int, ...] | None:
    return signature.output(0).shape


SPECS = (
    *specs(
        "",
        "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ArgMax ArgMin",
        Family.REDUCTION,
        work=Stream(1, rows=_results),
    ),
    *specs("", "ReduceL2 ReduceSumSquare", Family.REDUCTION, work=Stream(2, rows=_results)),
    *specs("", "ReduceLogSum ReduceLogSumExp", Family.REDUCTION, work=Stream(10, rows=_results)),
    *specs("", "TopK", Family.REDUCTION, work=Stream(10)),
    *specs("", "CumSum CumProd", Family.REDUCTION, work=Stream(1)),
    *specs("", "Hardmax", Family.REDUCTION, work=Stream(15)),
    *specs("", "Det DFT STFT", Family.REDUCTION),
    *specs("", "MaxPool AveragePool LpPool MaxUnpool", Family.POOLING, work=Stream(1)),
    *specs("", "GlobalMaxPool GlobalAveragePool GlobalLpPool", Family.POOLING, work=Stream(1, rows=_results)),
    # ONNX Runtime registers the gradients of pooling in the standard domain, where ONNX has no such ops.
    # MaxPoolGrad has an FP32 kernel only: release 1.19.2 crashes on loading a graph with a low one.
    *specs(
        "",
        "MaxPoolGrad",
        Family.POOLING,
        work=Stream(1),
        ports=FixedPorts((0,)),
        shapes=_pool_gradient_types,
        standard_in_runtime=True,
    ),
    *specs(
        "",
        "AveragePoolGrad",
        Family.POOLING,
        work=Stream(1),
        shapes=_pool_gradient_types,
        standard_in_runtime=True,
    ),
    *specs("", "MaxRoiPool Col2Im", Family.POOLING),
    *specs("", "RoiAlign", Family.POOLING, asks=((2, Ask.INDEX_ALONG_AXIS),)),
    *specs("", "ScatterElements Scatter", Family.SCATTER, work=Stream(0), asks=((1, Ask.INDEX_ALONG_AXIS),)),
    *specs("", "ScatterND", Family.SCATTER, work=Stream(0), asks=((1, Ask.INDEX_OF_ANY_AXIS),)),
    *specs("", "TensorScatter", Family.SCATTER, work=Stream(0)),
)
