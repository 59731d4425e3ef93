"""Figures that follow from hardware and a runtime together."""

from dataclasses import dataclass, replace

import pytest
from onnx import parser

from campo_onnx.errors import DeviceUnavailableError, ProfileError, UsageError
from campo_onnx.hardware.datasheet import device, devices
from campo_onnx.ir.importer import import_model
from campo_onnx.lowering.convolutions.passes import convolutions
from campo_onnx.lowering.place import Place
from campo_onnx.ops.key import OpKey
from campo_onnx.ops.precision import Precision
from campo_onnx.ops.signature import FLOAT, make_signature
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.onnxruntime.runtime import OnnxRuntime
from campo_onnx.runtime.overhead import Overhead
from campo_onnx.runtime.registry import processor_for, runtimes
from campo_onnx.targets.detect import cpu_with_low_precision, machine_of
from campo_onnx.targets.target import Target, target

H200 = target("h200")


def test_launches_cost_what_the_runtime_says() -> None:
    assert (target("zen4").launch_us, target("zen4").host_us) == (2.0, 1.0)
    assert (target("zen4", "openvino").launch_us, target("zen4", "openvino").host_us) == (4.0, 0.5)
    assert target("zen4").hardware == target("zen4", "openvino").hardware
    assert H200.launch_us == 5.0


@pytest.mark.parametrize("runtime", runtimes(), ids=lambda runtime: runtime.name)
def test_every_runtime_tells_its_costs_with_reasons(runtime) -> None:
    for hardware in (one for one in devices().values() if one.processor in runtime.processors):
        assumed = Target.of(hardware, runtime).assumptions
        assert assumed["launch_us"].value == Target.of(hardware, runtime).launch_us
        assert assumed["launch_us"].reason
        assert assumed["bandwidth"].value == hardware.efficiency.bandwidth


def test_a_captured_step_launches_for_less() -> None:
    captured = H200.captured
    assert (captured.launch_us, captured.host_us, captured.captures) == (2.0, 0.01, True)
    assert captured.captured == captured
    assert replace(H200, launch_us=0.5).captured.launch_us == 0.5
    assert H200.can_capture
    assert not target("cpu").can_capture
    assert not target("zen4", "openvino").can_capture


def test_a_precision_that_the_runtime_refuses_is_not_computed_in() -> None:
    hardware = replace(target("zen4").hardware, fp16_flops_per_s=1e12)
    assert Target.of(hardware).computes_in(Precision.FP16)
    assert not Target.of(hardware, "openvino").computes_in(Precision.FP16)


def test_targets_are_values() -> None:
    assert target("h200") == H200
    assert hash(target("h200")) == hash(H200)
    assert target("zen4", "openvino") != target("zen4")


@pytest.mark.parametrize("changes", [{"launch_us": -1.0}, {"host_us": float("nan")}])
def test_times_are_positive(changes: dict[str, float]) -> None:
    (name,) = changes
    with pytest.raises(ProfileError, match=f"{name} of 'h200' is"):
        replace(H200, **changes)


def test_unknown_names() -> None:
    with pytest.raises(UsageError, match="Did you mean 'h200'"):
        target("h20O")
    with pytest.raises(UsageError, match="unknown runtime 'tensorrt'"):
        target("h200", "tensorrt")


def test_every_device_has_a_runtime_of_its_own_kind() -> None:
    arc = target("arc_a770")
    assert (arc.runtime.name, arc.can_capture) == ("openvino-gpu", False)
    assert arc.computes_in(Precision.FP16)
    assert not arc.computes_in(Precision.BF16)
    assert all(one.processor in Target.of(one).runtime.processors for one in devices().values())


@pytest.mark.parametrize(
    ("name", "runtime", "instead"),
    [
        ("arc_a770", "onnxruntime", "openvino-gpu"),
        ("arc_a770", "openvino", "openvino-gpu"),
        ("h200", "openvino", "onnxruntime"),
        ("zen4", "openvino-gpu", "onnxruntime"),
    ],
)
def test_a_runtime_without_kernels_for_a_device_is_refused(name: str, runtime: str, instead: str) -> None:
    with pytest.raises(UsageError, match=f"{runtime} does not run on {name}") as raised:
        target(name, runtime)
    assert f"--runtime {instead}" in raised.value.remedy


def test_steps_on_intels_gpus_are_planned_and_not_run() -> None:
    runtime = target("arc_b580").runtime
    product = make_signature(
        OpKey("", "MatMul"), inputs=[(FLOAT, (64, 64))] * 2, outputs=[(FLOAT, (64, 64))], opset=22
    )
    totals = make_signature(
        OpKey("", "CumSum"), inputs=[(FLOAT, (64,)), (7, (1,))], outputs=[(FLOAT, (64,))], opset=22
    )
    assert runtime.support(product, "intel_gpu", Precision.FP16) is Support.NATIVE
    assert runtime.support(product, "intel_gpu", Precision.BF16) is Support.REFUSED
    assert runtime.sums_low(totals, "intel_gpu", Precision.FP16)
    with pytest.raises(DeviceUnavailableError, match="predicted, not run"):
        processor_for("intel_gpu")
    with pytest.raises(DeviceUnavailableError, match="predicted, not run"):
        machine_of(target("arc_b580"))


@dataclass(frozen=True, slots=True)
class Tuned(OnnxRuntime):
    """ONNX Runtime with other figures for a Zen 4."""

    def overhead(self, processor: str, *, captured: bool = False) -> Overhead:
        overhead = OnnxRuntime.overhead(self, processor, captured=captured)
        slow = replace(overhead.kernels["cpu"], conv_gflop_per_s=1.0)
        return replace(overhead, kernels={**overhead.kernels, "zen4": slow})


def test_forms_are_chosen_by_the_figures_of_the_cpu() -> None:
    graph = import_model(
        parser.parse_model(
            '<ir_version: 10, opset_import: ["": 20]> g (float[2,32,40,40] x, float[32,32,3,3] w) =>'
            " (float[2,32,40,40] y) { y = Conv<pads = [1,1,1,1]>(x, w) }"
        )
    )
    for name, operator in (("cpu", "Conv"), ("zen4", "Gemm")):
        lowered = convolutions(graph, Place(target=Target.of(device(name), Tuned())))
        assert {node.op_type for node in lowered.graph.node} & {"Conv", "Gemm", "MatMul"} == {operator}


def test_a_runtime_without_figures_has_those_of_the_default() -> None:
    assert target("zen4", "openvino").cpu_kernels == target("cpu").cpu_kernels == target("zen4").cpu_kernels


def test_a_cpu_is_asked_of_runtimes_for_cpus_alone(monkeypatch) -> None:
    for kind in {type(runtime) for runtime in runtimes()}:
        monkeypatch.setattr(kind, "problem", lambda self, processor: "absent")
    assert cpu_with_low_precision() is None
