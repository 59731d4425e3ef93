"""Reductions, pooling, and the scatters that are gradients of gathers."""

from campo_onnx.ops.key import MICROSOFT
from campo_onnx.ops.signature import Signature, TensorType
from campo_onnx.ops.spec import FP16_KERNELS, LOW_KERNELS, Ask, Family, FixedPorts, ShapedBy, specs
from campo_onnx.ops.work import Stream


def _reduce_sum_types(signature: Signature) -> list[TensorType]:
    data, axes = signature.input(0).type, signature.ints(1)
    if data.shape is None or axes is None:
        return [TensorType(data.dtype)]
    if not axes and signature.attribute("noop_with_empty_axes", 0):
        return [data]
    rank = len(data.shape)
    reduced = {axis % rank for axis in axes} if axes else set(range(rank))
    keep = signature.attribute("keepdims", 1)
    sizes = [1 if axis in reduced else size for axis, size in enumerate(data.shape)]
    return [TensorType(data.dtype, tuple(s for i, s in enumerate(sizes) if keep or i not in reduced))]


SPECS = (
    *specs(
        MICROSOFT,
        "ReduceSumTraining",
        Family.REDUCTION,
        work=Stream(1),
        ports=FixedPorts((0,)),
        training_kernels=FP16_KERNELS,
        shapes=_reduce_sum_types,
    ),
    *specs(MICROSOFT, "ReduceAllL2 All Rfft Irfft", Family.REDUCTION),
    *specs(MICROSOFT, "NhwcMaxPool MaxpoolWithMask CropAndResize UnfoldTensor", Family.POOLING),
    *specs(
        MICROSOFT,
        "GatherGrad",
        Family.SCATTER,
        work=Stream(0),
        ports=FixedPorts((2,)),
        training_kernels=LOW_KERNELS,
        shapes=ShapedBy(0, 2),
        asks=((1, Ask.INDEX_OF_SHAPE),),
    ),
    *specs(MICROSOFT, "GatherElementsGrad", Family.SCATTER, work=Stream(0), shapes=ShapedBy(1, 0)),
    *specs(MICROSOFT, "GatherNDGrad", Family.SCATTER, work=Stream(0), shapes=ShapedBy(0, 2)),
)
