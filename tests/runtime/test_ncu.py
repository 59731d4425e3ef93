"""Hardware counters: tables, commands and refusals of ``ncu``; no GPU is needed."""

import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from campo_onnx.errors import DeviceUnavailableError
from campo_onnx.runtime.onnxruntime import ncu, ncu_step
from campo_onnx.runtime.onnxruntime.ncu import (
    DURATION,
    METRICS,
    TENSOR_PIPE,
    KernelCounters,
    command,
    count,
    divide,
    explain,
    parse,
    tensor_pipe_share,
    totals,
)
from campo_onnx.runtime.onnxruntime.program import OnnxProgram
from campo_onnx.runtime.registry import machine

DATA = Path(__file__).parent.parent / "data"
BYTES = "dram__bytes_read.sum"

# Both tables are written by hand after the format of ncu 2023 to 2025; the figures are made up.
IDS = '"{id}","4242","python3.12","127.0.0.1","{name}","1","7","{block}","{grid}","0","9.0"'
MARK = IDS.format(
    id="{id}", name="void IsNanKernel(float const*, bool*, int)", block="(256, 1, 1)", grid="(49, 1, 1)"
)
GEMM = IDS.format(
    id="{id}", name="sm90_xmma_gemm<float, 128>(int, int)", block="(384, 1, 1)", grid="(16, 8, 1)"
)
HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Device","CC"'
)


def raw(rows: list[str], units: str = '"ns","byte","%"') -> str:
    lines = [
        "==PROF== Connected to process 4242 (/usr/bin/python3.12)",
        '==PROF== Profiling "IsNanKernel" - 0: 0%....50%....100% - 2 passes',
        "==PROF== Disconnected from process 4242",
        f'{HEAD},"{DURATION}","{BYTES}","{TENSOR_PIPE}"',
        f'"","","","","","","","","","","",{units}',
        *rows,
    ]
    return "\n".join(lines) + "\n"


TABLE = raw(
    [
        MARK.format(id=0) + ',"1,500","49,380","0"',
        GEMM.format(id=1) + ',"3,000","1,048,576","80.5"',
        GEMM.format(id=2) + ',"1,000","2,000,000.50","40.5"',
        MARK.format(id=3) + ',"1,500","49,380","0"',
        MARK.format(id=4) + ',"1,500","49,380","0"',
        GEMM.format(id=5) + ',"2,000","64","n/a"',
    ]
)


def test_a_row_per_kernel() -> None:
    kernels = parse(TABLE)
    assert [kernel.name for kernel in kernels[:2]] == [
        "void IsNanKernel(float const*, bool*, int)",
        "sm90_xmma_gemm<float, 128>(int, int)",
    ]
    assert kernels[1].grid == "(16, 8, 1)"
    assert kernels[1].values == {DURATION: 3000.0, BYTES: 1048576.0, TENSOR_PIPE: 80.5}
    assert kernels[5].values == {DURATION: 2000.0, BYTES: 64.0}  # n/a is not a number


def test_scaled_units() -> None:
    (kernel,) = parse(raw([GEMM.format(id=0) + ',"3.25","1.5","80.5"'], '"usecond","Mbyte","%"'))
    assert kernel.values == {DURATION: 3250.0, BYTES: 1.5e6, TENSOR_PIPE: 80.5}


def test_a_row_per_kernel_and_metric() -> None:
    metric = '"Command line profiler metrics"'
    lines = [
        f'{HEAD},"Section Name","Metric Name","Metric Unit","Metric Value"',
        GEMM.format(id=0) + f',{metric},"{DURATION}","us","1,205.00"',
        GEMM.format(id=0) + f',{metric},"{BYTES}","Gbyte","1.25"',
        GEMM.format(id=0) + f',{metric},"{TENSOR_PIPE}","","n/a"',
        GEMM.format(id=1) + f',{metric},"{DURATION}","msecond","2"',
    ]
    first, second = parse("\n".join(lines))
    assert first.values == {DURATION: 1_205_000.0, BYTES: 1.25e9}
    assert second.values == {DURATION: 2_000_000.0}


@pytest.mark.parametrize("text", ["", "==ERROR== something\n", '"no","table"\n'])
def test_no_table(text: str) -> None:
    assert parse(text) == ()


def test_marks_divide_the_kernels_by_model() -> None:
    groups = divide(parse(TABLE))
    assert [len(group) for group in groups] == [2, 0, 1]
    assert divide(()) == ()


def test_counts_add_up_and_shares_are_weighted_by_time() -> None:
    sums = totals(divide(parse(TABLE))[0])
    assert sums[DURATION] == 4000.0
    assert sums[BYTES] == 3048576.5
    assert sums[TENSOR_PIPE] == pytest.approx((3000 * 80.5 + 1000 * 40.5) / 4000)
    lacking = KernelCounters(name="k", grid="", values={DURATION: 5.0})
    assert totals([lacking, *divide(parse(TABLE))[0]]) == {DURATION: 4005.0}


def test_the_command_keeps_caches_warm_and_clocks_alone() -> None:
    words = command("/bin/ncu", Path("out.csv"), [Path("a.onnx")], metrics=METRICS, dims={"batch": 8})
    line = " ".join(words)
    assert "--cache-control none --clock-control none" in line
    assert "--profile-from-start off" in line
    assert words[words.index("--metrics") + 1].split(",") == list(METRICS)
    assert words[-5:] == ["-m", "campo_onnx.runtime.onnxruntime.ncu_step", "--dim", "batch=8", "a.onnx"]
    (names,) = [w for w in command("n", Path("o"), [], metrics=[TENSOR_PIPE], dims={}) if "," in w]
    assert names == f"{DURATION},{TENSOR_PIPE}"  # shares need their weights


PERMISSION = (
    "==PROF== Connected to process 4242 (/usr/bin/python3.12)\n"
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
    "Counters on the target device 0. For instructions on enabling permissions see the documentation\n"
)


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (PERMISSION, "only administrators"),
        (
            "==PROF== x\n==ERROR== Failed to find metric regex:^nonsense$\n==ERROR== y\n",
            "Failed to find metric",
        ),
        ("==WARNING== No kernels were profiled.\n", "No kernels were profiled."),
        ("==PROF== x\nthe CUDA provider cannot be used: no GPU.\n", "the CUDA provider cannot be used"),
        ("", "ncu wrote nothing"),
    ],
)
def test_reasons(output: str, why: str) -> None:
    assert explain(output)[0].startswith(("the driver lets " + why) if "only" in why else why)
    assert "--counters off" in explain(output)[1]


def fake_ncu(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "ncu"
    program.write_text(
        f"#!{sys.executable}\nimport sys, time\nlog = sys.argv[sys.argv.index('--log-file') + 1]\n{body}\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ncu(tmp_path, f"open(log, 'w').write({TABLE!r})", monkeypatch)
    first, second, third = count([Path("a"), Path("b"), Path("c")])
    assert first is not None
    assert first[BYTES] == 3048576.5
    assert second is None
    assert third == {DURATION: 2000.0, BYTES: 64.0}
    with pytest.raises(DeviceUnavailableError, match="ncu saw 3 of 2 models"):
        count([Path("a"), Path("b")])


def test_tensor_pipe_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = raw([MARK.format(id=0) + ',"1","1","0"', GEMM.format(id=1) + ',"3,000","1","80.5"'])
    fake_ncu(tmp_path, f"open(log, 'w').write({one!r})", monkeypatch)
    assert tensor_pipe_share(Path("a")) == pytest.approx(0.805)
    fake_ncu(tmp_path, "", monkeypatch)
    assert tensor_pipe_share(Path("a")) is None


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (f"open(log, 'w').write({PERMISSION!r}); sys.exit(1)", r"only administrators.*SYS_ADMIN"),
        ("print('CUDA is gone', file=sys.stderr); sys.exit(3)", "CUDA is gone"),
        ("time.sleep(3600)", r"did not end within 0 s"),
    ],
)
def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, why: str) -> None:
    fake_ncu(tmp_path, body, monkeypatch)
    with pytest.raises(DeviceUnavailableError, match=why) as error:
        count([Path("a")], limit_s=0.3 if "sleep" in body else ncu.LIMIT_S)
    assert error.value.exit_code == 8


def test_without_ncu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu.shutil, "which", lambda name, path: None)
    with pytest.raises(DeviceUnavailableError, match="not installed"):
        count([DATA / "mlp.onnx"])


def test_each_model_runs_once_under_the_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    runs: list[str] = []
    placed = OnnxProgram.placed

    def counting(program, feeds):  # type: ignore[no-untyped-def]
        step = placed(program, feeds)
        name = "mark" if feeds["x"].dtype == np.float32 and feeds["x"].size == 12_345 else "model"
        return lambda: (runs.append(name), step())[1]

    model = tmp_path / "model.onnx"
    write_relu(model)
    monkeypatch.setattr(OnnxProgram, "placed", counting)

    def switch(on: bool) -> None:
        runs.append("on" if on else "off")

    ncu_step.profile_steps([model, bad, model], machine("cpu", 1), {}, switch)
    warm, step = ["model", "model"], ["on", "mark", "model", "off"]
    assert runs == ["mark", *warm, *step, "on", "mark", "off", *warm, *step]


def write_relu(path: Path) -> None:
    import onnx

    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 20]> g (float[8] x) => (float[8] y) { y = Relu(x) }
    """)
    onnx.save(model, path)


def test_the_step_process_ends_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(wanted: str) -> str:
        raise DeviceUnavailableError("the CUDA provider cannot be used", why="no GPU")

    monkeypatch.setattr(ncu_step, "processor_for", refuse)
    with pytest.raises(SystemExit, match="no GPU"):
        ncu_step.main(["model.onnx", "--dim", "N=4"])
