"""Attributes and inputs of operators that ONNX has no schema for: its checker lets any pass."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from onnx import AttributeProto, defs

from campo_onnx.ops.key import MICROSOFT, OpKey
from campo_onnx.ops.registry import spec
from campo_onnx.ops.schema import schema_of

_INT, _INTS, _STRING = AttributeProto.INT, AttributeProto.INTS, AttributeProto.STRING

_RUNTIME_ONLY = {
    "full_shape_outputs": _INTS,
    "is_inner_broadcast": _INT,
    "non_differentiable_outputs": _INTS,
    "num_branches": _INT,
    "operator": _STRING,
    "output_type": _INT,
    "overload_name": _STRING,
    "transBatchA": _INT,
    "transBatchB": _INT,
}
"""Attributes that no standard operator has."""

_AMBIGUOUS = frozenset({"activation", "activation_alpha", "activation_beta"})
"""Attributes whose type in ONNX Runtime's operators is not that in ONNX's."""

_LEAST_INPUTS = {
    1: "BitmaskDropout ConcatTraining FastGelu Gelu Inverse Irfft IsAllFinite MultiHeadAttention NhwcMaxPool "
    "QuickGelu Rfft ScaledSiLU Trilu UnfoldTensor Unique",
    2: "Attention BiasDropout BiasGelu BiasSoftmax BiasSplitGelu BitmaskBiasDropout CDist "
    "ConvTransposeWithDynamicPads DequantizeLinear DropoutGrad ExpandDims FastGeluGrad FusedConv FusedGemm "
    "FusedMatMul FusedMatMulActivation GatherND GeluGrad GemmFastGelu GridSample LeakyReluGrad "
    "LogSoftmaxGrad LogSoftmaxGrad_13 MaxpoolWithMask NhwcConv NhwcFusedConv Pad QuantizeLinear "
    "QuickGeluGrad Range ReduceSumTraining ReluGrad RemovePadding RestorePadding ScaledSum SigmoidGrad "
    "SinGrad SoftmaxCrossEntropyLossInternal SoftmaxGrad SoftmaxGrad_13 SplitTraining TanhGrad "
    "TransposeMatMul View",
    3: "BiasAdd BiasFastGeluGrad_dX BiasGeluGrad_dX ConvGrad ConvTransposeGrad DivGrad GatedAdd "
    "GatherElementsGrad GatherGrad GatherNDGrad GroupNorm HyperConnectionPostMix SkipLayerNormalization "
    "SkipSimplifiedLayerNormalization SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternalGrad",
    4: "CropAndResize RotaryEmbedding SkipGroupNorm",
    5: "BatchNormInternal LayerNormalizationGrad PackedAttention",
    6: "PackedMultiHeadAttention",
    7: "EmbedLayerNormalization GroupQueryAttention LongformerAttention",
}
"""Operators of ONNX Runtime by the number of inputs that they always have."""


def least_inputs(op: OpKey) -> int:
    """Number of inputs that a node always has; 0 where ONNX's checker sees to it, or nothing is known.

    >>> least_inputs(OpKey("com.microsoft", "FusedMatMul")), least_inputs(OpKey("", "MatMul"))
    (2, 0)
    """
    return _least_inputs().get(op, 0)


@cache
def _least_inputs() -> Mapping[OpKey, int]:
    return {OpKey(MICROSOFT, name): count for count, names in _LEAST_INPUTS.items() for name in names.split()}


def attribute_type(op: OpKey, opset: int, name: str) -> int | None:
    """Type that an attribute must have (``AttributeProto.AttributeType``).

    It is None where ONNX's checker sees to it, the operator is not registered here, or operators differ.

    ONNX uses the same type for a name in all its operators, but for four names, and ONNX Runtime's operators
    follow it. A custom operator may do as it likes: nothing here reads its attributes.

    >>> attribute_type(OpKey("com.microsoft", "ConcatTraining"), 1, "axis") == AttributeProto.INT
    True
    >>> attribute_type(OpKey("my.domain", "Fancy"), 1, "axis") is None
    True
    """
    if not spec(op).is_known or schema_of(op, opset) is not None:
        return None
    return _types().get(name)


@cache
def _types() -> Mapping[str, int]:
    types: dict[str, set[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain:
            for attribute in schema.attributes.values():
                types.setdefault(attribute.name, set()).add(int(attribute.type))  # type: ignore[call-overload]
    certain = {name: kinds.pop() for name, kinds in types.items() if len(kinds) == 1}
    return MappingProxyType(
        {name: kind for name, kind in (certain | _RUNTIME_ONLY).items() if name not in _AMBIGUOUS}
    )
