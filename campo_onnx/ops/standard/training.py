"""Losses and the weight update: what no list and no option releases."""

from campo_onnx.ops.signature import Signature, TensorType
from campo_onnx.ops.spec import Ask, Family, specs
from campo_onnx.ops.work import Stream

_PREVIEW = "ai.onnx.preview.training"


def cross_entropy_types(signature: Signature) -> list[TensorType]:
    """Loss and log-probabilities; ``output_type`` may let FP16 logits give an FP32 loss."""
    logits, labels = signature.input(0), signature.input(1)
    dtype = signature.attribute("output_type", 0) or logits.dtype
    loss = labels.shape if signature.attribute("reduction", "mean") == "none" else ()
    return [TensorType(dtype, loss), TensorType(dtype, logits.shape)]


SPECS = (
    *specs(
        "",
        "SoftmaxCrossEntropyLoss",
        Family.LOSS,
        work=Stream(15),
        shapes=cross_entropy_types,
        asks=((1, Ask.CLASS),),
    ),
    *specs("", "NegativeLogLikelihoodLoss", Family.LOSS, work=Stream(15), asks=((1, Ask.CLASS),)),
    # ONNX Runtime registers these two in the standard domain.
    *specs(
        "",
        "SparseSoftmaxCrossEntropy",
        Family.LOSS,
        work=Stream(15),
        standard_in_runtime=True,
        asks=((1, Ask.CLASS_OF_LAST_AXIS),),
    ),
    *specs("", "SparseSoftmaxCrossEntropyGrad", Family.LOSS, work=Stream(12), standard_in_runtime=True),
    *specs(_PREVIEW, "Adam Adagrad Momentum", Family.UPDATE, work=Stream(12)),
    *specs(_PREVIEW, "Gradient", Family.UPDATE),
)
