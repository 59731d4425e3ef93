"""Losses, gradient accumulation, clipping and the weight update: what no list and no option releases."""

from onnx import TensorProto

from campo_onnx.ops.key import MICROSOFT
from campo_onnx.ops.signature import Signature, TensorType
from campo_onnx.ops.spec import SAME_AS_FIRST, Ask, Family, Like, specs
from campo_onnx.ops.standard.training import cross_entropy_types
from campo_onnx.ops.work import Stream

_BOOL = int(TensorProto.BOOL)


def _cross_entropy_grad_types(signature: Signature) -> list[TensorType]:
    dy, log_prob = signature.input(0), signature.input(1)
    return [TensorType(signature.attribute("output_type", 0) or dy.dtype, log_prob.shape)]


def _accumulate_types(signature: Signature) -> list[TensorType]:
    return [TensorType(_BOOL, (1,)), signature.input(0).type]


def _lamb_types(signature: Signature) -> list[TensorType]:
    # The step, then (weight, gradient, moments, low-precision weight) groups, as they came in.
    return [signature.input(i).type for i in range(4, len(signature.inputs))]


SPECS = (
    *specs(MICROSOFT, "SoftmaxCrossEntropy", Family.LOSS, shapes=cross_entropy_types),
    *specs(MICROSOFT, "SoftmaxCrossEntropyGrad", Family.LOSS, shapes=_cross_entropy_grad_types),
    *specs(
        MICROSOFT,
        "SoftmaxCrossEntropyLossInternal",
        Family.LOSS,
        work=Stream(15),
        shapes=cross_entropy_types,
        asks=((1, Ask.CLASS),),
    ),
    *specs(
        MICROSOFT,
        "SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternalGrad",
        Family.LOSS,
        work=Stream(12),
        shapes=_cross_entropy_grad_types,
    ),
    *specs(MICROSOFT, "NegativeLogLikelihoodLossInternal NegativeLogLikelihoodLossInternal2", Family.LOSS),
    *specs(MICROSOFT, "AdamOptimizer", Family.UPDATE, work=Stream(12), shapes=Like((1, 4, 5, 2, 3, 6))),
    # The updated weights and moments of AdamWOptimizer are sequences.
    *specs(MICROSOFT, "AdamWOptimizer", Family.UPDATE, work=Stream(12), shapes=Like((1,))),
    *specs(MICROSOFT, "LambOptimizer", Family.UPDATE, work=Stream(12), shapes=_lamb_types),
    *specs(MICROSOFT, "SGDOptimizer", Family.UPDATE, work=Stream(12), shapes=Like((1, 2))),
    *specs(
        MICROSOFT, "SGDOptimizerV2", Family.UPDATE, work=Stream(12), shapes=lambda _: [TensorType(_BOOL, ())]
    ),
    *specs(MICROSOFT, "InPlaceAccumulator", Family.UPDATE, shapes=SAME_AS_FIRST),
    *specs(MICROSOFT, "InPlaceAccumulatorV2", Family.UPDATE, work=Stream(1), shapes=_accumulate_types),
    *specs(MICROSOFT, "ZeroGradient", Family.UPDATE, work=Stream(0), shapes=SAME_AS_FIRST),
    *specs(MICROSOFT, "InplaceClipGradNorm", Family.UPDATE),
)
