"""Figures that a Device accepts, and what it says about precisions."""

from dataclasses import replace
from typing import Any

import pytest

from campo_onnx.errors import ProfileError
from campo_onnx.hardware.hardware import Efficiency, Hardware
from campo_onnx.ops.precision import Precision, precisions
from campo_onnx.targets.target import Target

EFFICIENCY = Efficiency(bandwidth=0.5, cuda_cores=0.8, tensor_cores=0.6, unaligned=0.5)
GPU = Hardware(
    name="gpu",
    title="A GPU",
    processor="cuda",
    compute_capability=(8, 0),
    sm_count=100,
    l2_bytes=1 << 20,
    memory_bandwidth_bytes_per_s=1e12,
    fp32_flops_per_s=10e12,
    fp16_flops_per_s=20e12,
    tf32_flops_per_s=50e12,
    fp16_tensor_flops_per_s=100e12,
    bf16_tensor_flops_per_s=90e12,
    efficiency=EFFICIENCY,
    source="made up",
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sm_count": 0}, "sm_count is 0"),
        ({"fp32_flops_per_s": float("inf")}, "fp32_flops_per_s is inf"),
        ({"processor": "tpu"}, "'tpu' is none of cpu, cuda, intel_gpu"),
        ({"processor": "cpu"}, "compute capability"),
        ({"compute_capability": None}, "compute capability"),
        ({"compute_capability": (7, 5)}, "need compute capability 8.0"),
        ({"fp16_flops_per_s": None}, "no FP16 arithmetic"),
    ],
)
def test_inconsistent_figures_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProfileError, match=message) as caught:
        replace(GPU, **changes)
    assert "'gpu'" in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 1.5, -0.1, float("nan")])
def test_efficiencies_are_shares(share: float) -> None:
    with pytest.raises(ProfileError, match="bandwidth"):
        replace(EFFICIENCY, bandwidth=share)


def test_no_tensor_cores_for_unaligned_products_is_a_share_too() -> None:
    assert replace(EFFICIENCY, unaligned=0.0).unaligned == 0.0


def test_effective_bandwidth() -> None:
    assert GPU.effective_bytes_per_us == pytest.approx(0.5e6)


def test_tf32_serves_fp32_only_where_the_runtime_takes_it() -> None:
    assert Target.of(GPU).tensor_flops_per_s(Precision.FP32) == 50e12
    arc = replace(GPU, processor="intel_gpu", compute_capability=None)
    assert Target.of(arc).tensor_flops_per_s(Precision.FP32) is None
    assert GPU.tensor_flops_per_s(Precision.FP16) == 100e12
    assert GPU.tensor_flops_per_s(Precision.BF16) == 90e12


def test_precisions_without_arithmetic() -> None:
    without = replace(GPU, fp16_flops_per_s=None, fp16_tensor_flops_per_s=None, bf16_tensor_flops_per_s=None)
    assert [p for p in precisions() if Target.of(without).computes_in(p)] == [Precision.FP32]
    assert all(Target.of(GPU).computes_in(p) for p in precisions())
