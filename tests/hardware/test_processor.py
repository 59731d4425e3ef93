"""Which CPU a machine has, and the figures of as many cores as there are."""

from pathlib import Path

import pytest

from campo_onnx.errors import DeviceMismatchError, ProfileError
from campo_onnx.hardware.datasheet import devices, matching_processor, read_catalogue
from campo_onnx.hardware.processor import Processor, parse_cpuinfo
from campo_onnx.ops.precision import Precision
from campo_onnx.runtime.machine import Machine
from campo_onnx.runtime.registry import runtimes
from campo_onnx.targets import detect
from campo_onnx.targets.detect import machine_of, resolve_target, target_of, this_cpu
from campo_onnx.targets.detect import this_machine as described
from campo_onnx.targets.target import target
from tests.hardware.test_datasheet import folder

__all__ = ["folder"]


def cpuinfo(vendor: str, family: int, model: int, *flags: str) -> str:
    return (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n"
        f"model name\t: a name\nflags\t\t: {' '.join(flags)}\n\nprocessor\t: 1\nmodel\t\t: 0\n"
    )


# CPUs by the numbers that their vendors document, and the file of each.
REAL = {
    ("AuthenticAMD", 25, 17): "zen4",  # EPYC 9004
    ("AuthenticAMD", 25, 160): "zen4",  # EPYC 97x4
    ("AuthenticAMD", 25, 1): None,  # EPYC 7003, Zen 3
    ("AuthenticAMD", 25, 97): None,  # Ryzen 7000: two channels
    ("AuthenticAMD", 26, 2): "zen5",
    ("AuthenticAMD", 26, 17): "zen5",
    ("AuthenticAMD", 26, 68): None,  # Ryzen 9000
    ("GenuineIntel", 6, 143): "sapphire_rapids",
    ("GenuineIntel", 6, 207): "sapphire_rapids",
    ("GenuineIntel", 6, 173): "granite_rapids",
    ("GenuineIntel", 6, 106): None,  # Ice Lake
    ("GenuineIntel", 25, 17): None,
}


@pytest.mark.parametrize(("numbers", "name"), REAL.items())
def test_a_cpu_is_a_device_by_its_numbers(numbers: tuple[str, int, int], name: str | None) -> None:
    processor = parse_cpuinfo(cpuinfo(*numbers, "avx512_bf16", "amx_bf16"))
    assert processor is not None
    matched = matching_processor(processor, cores=4)
    assert (None if matched is None else matched.name) == name


@pytest.mark.parametrize(
    ("part", "name"), [("0xd40", "neoverse_v1"), ("0xd4f", "neoverse_v2"), ("0xd0c", None)]
)
def test_arm_tells_implementer_and_part(part: str, name: str | None) -> None:
    lines = ("Features: fp asimd bf16", "CPU implementer : 0x41", "CPU architecture: 8", f"CPU part : {part}")
    text = "\n".join(lines)
    processor = parse_cpuinfo(text)
    assert processor is not None
    assert "bf16" in processor.features
    matched = matching_processor(processor, cores=64)
    assert (None if matched is None else matched.name) == name


@pytest.mark.parametrize("text", ["", "processor : 0\nmodel name : a CPU\n", "cpu family : x\nmodel : 1"])
def test_a_kernel_that_does_not_tell(text: str) -> None:
    assert parse_cpuinfo(text) is None


def test_figures_grow_with_cores_and_memory_does_not_forever() -> None:
    processor = parse_cpuinfo(cpuinfo("AuthenticAMD", 25, 17, "avx512_bf16"))
    assert processor is not None
    socket = target("zen4").hardware
    two, whole = (matching_processor(processor, cores) for cores in (2, socket.sm_count))
    assert two is not None
    assert whole is not None
    assert two.sm_count == 2
    assert two.fp32_flops_per_s == pytest.approx(socket.fp32_flops_per_s * 2 / socket.sm_count)
    bf16, peak = (d.tensor_flops_per_s(Precision.BF16) for d in (two, socket))
    assert bf16 is not None
    assert peak is not None
    assert bf16 == pytest.approx(peak * 2 / socket.sm_count)
    assert bf16 == pytest.approx(2 * two.fp32_flops_per_s)
    assert two.memory_bandwidth_bytes_per_s < whole.memory_bandwidth_bytes_per_s
    assert whole.memory_bandwidth_bytes_per_s == socket.memory_bandwidth_bytes_per_s
    assert "scaled to 2 of 96 cores" in two.source


def test_units_that_a_hypervisor_hides_are_not_planned_for() -> None:
    for feature, expected in (("amx_bf16", True), ("avx512_bf16", False)):
        processor = parse_cpuinfo(cpuinfo("GenuineIntel", 6, 143, feature))
        assert processor is not None
        matched = matching_processor(processor, cores=8)
        assert matched is not None
        assert (matched.tensor_flops_per_s(Precision.BF16) is not None) is expected


def test_every_cpu_with_bf16_units_tells_how_it_is_recognised(folder: Path) -> None:
    cpus = {name for name, d in devices().items() if not d.is_gpu and d.tensor_flops_per_s(Precision.BF16)}
    told_by_features = {"cpu_amx", "cpu_bf16"}
    sheets = read_catalogue(folder).sheets
    assert {name for name, sheet in sheets.items() if sheet.processors} == cpus - told_by_features
    path = folder / "zen4.toml"
    path.write_text(path.read_text().replace('bf16_feature = "avx512_bf16"', ""))
    with pytest.raises(ProfileError, match="needs bf16_feature"):
        read_catalogue(folder)


def test_a_cpu_needs_what_a_core_draws(folder: Path) -> None:
    path = folder / "zen4.toml"
    path.write_text(path.read_text().replace('"cpu_vector"', '"cpu"'))
    with pytest.raises(
        ProfileError, match="'zen4' names processors, but assumptions 'cpu' have no core_gb_per_s"
    ):
        read_catalogue(folder)


@pytest.fixture
def genoa(monkeypatch: pytest.MonkeyPatch) -> Processor:
    """A Zen 4 machine of four cores."""
    processor = parse_cpuinfo(cpuinfo("AuthenticAMD", 25, 17, "avx512_bf16"))
    assert processor is not None
    monkeypatch.setattr(detect, "this_processor", lambda: processor)
    monkeypatch.setattr(detect, "cores", lambda: 4)
    return processor


def test_openvino_plans_for_machine_of(genoa: Processor) -> None:
    chosen, note = resolve_target("auto", "openvino")
    assert (chosen.name, chosen.runtime.name, chosen.hardware.sm_count) == ("zen4", "openvino", 4)
    assert chosen.computes_in(Precision.BF16)
    assert "4 cores of zen4" in note


def test_onnx_runtime_computes_in_fp32_on_every_cpu(genoa: Processor) -> None:
    here = Machine(provider="cpu", device="x", driver="", cuda="", ort="1", tf32=False, threads=2)
    assert target_of(here).name == "cpu"
    assert this_cpu("onnxruntime").name == "cpu"


def test_timings_are_filed_under_the_cpu(genoa: Processor) -> None:
    here = Machine(
        provider="cpu", device="x", driver="", cuda="", ort="1", tf32=False, threads=2, runtime="openvino"
    )
    filed = target_of(here)
    assert (filed.name, filed.runtime.name, filed.hardware.sm_count) == ("zen4", "openvino", 2)


def test_an_unknown_cpu_is_a_rough_one_without_units(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = parse_cpuinfo(cpuinfo("AuthenticAMD", 25, 1, "avx2"))
    for processor in (None, unknown):
        monkeypatch.setattr(detect, "this_processor", lambda processor=processor: processor)
        chosen, note = resolve_target("auto", "openvino")
        assert (chosen.name, chosen.computes_in(Precision.BF16)) == ("cpu", False)
        assert "no figures of" in note


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        (("AuthenticAMD", 25, 97, "avx512_bf16"), "cpu_bf16"),
        (("GenuineIntel", 6, 167, "avx512_bf16 amx_bf16"), "cpu_amx"),  # as a hypervisor shows it
        (("0x41", 8, 0xD81, "bf16"), "cpu_bf16"),
    ],
)
def test_an_unknown_cpu_with_units_is_planned_for_in_bf16(
    processor: tuple[str, int, int, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "this_processor", lambda: parse_cpuinfo(cpuinfo(*processor)))
    monkeypatch.setattr(detect, "cores", lambda: 2)
    chosen, note = resolve_target("auto", "openvino")
    assert (chosen.name, chosen.hardware.sm_count, chosen.computes_in(Precision.BF16)) == (name, 2, True)
    assert "no figures of" in note


def test_another_cpu_is_not_measured_here(genoa: Processor) -> None:
    assert machine_of(target("cpu")).provider == "cpu"
    with pytest.raises(DeviceMismatchError, match="granite_rapids cannot be measured here"):
        machine_of(target("granite_rapids"))


def test_this_machine_in_a_few_facts() -> None:
    here = described()
    assert here.cores >= 1
    assert [runtime.name for runtime in here.runtimes] == [runtime.name for runtime in runtimes()]
    assert all(bool(runtime.version) != bool(runtime.problem) for runtime in here.runtimes)
