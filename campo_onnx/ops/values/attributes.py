"""Scalar attributes that a node computes with, as it does with a constant input: alpha of a Gemm, a slope."""

from collections.abc import Iterator

from campo_onnx.ops.signature import Signature

_NO_DATA = frozenset(
    {"cubic_coeff_a", "epsilon", "momentum", "qk_norm_epsilon", "sampling_ratio", "seed", "spatial_scale"}
)
"""Attributes that are not computed with, or that kernels use in FP32 whatever the data's type."""


def scalar_attributes(signature: Signature) -> Iterator[tuple[str, float]]:
    """List the floating-point attributes that take part in what a node computes; infinity and NaN too."""
    for name, value in signature.attributes.items():
        if isinstance(value, float) and name not in _NO_DATA:
            yield name, value
