"""Compiled graphs in OpenVINO, and in whichever runtime is faster here."""

import copy
import json
import resource
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from campo_onnx.runtime.openvino.installed import openvino_problem

if problem := openvino_problem():
    pytest.skip(problem, allow_module_level=True)

from against_eager import Encoder, compiled, convolutions, distance, gradients, perceptron, worst_of_steps
from torch import nn
from torch.autograd.profiler import profile

from campo_onnx.errors import DeviceUnavailableError, UsageError
from campo_onnx.integrations.torch_compile import report
from campo_onnx.integrations.torch_compile import runtimes as choosing
from campo_onnx.ops.precision import Precision
from campo_onnx.planning import pipeline
from campo_onnx.runtime.api import Support
from campo_onnx.runtime.openvino import kernels
from campo_onnx.runtime.openvino.addresses import AddressedRequest

NETWORKS = {
    "perceptron": (lambda: perceptron(0.5), (3, 4)),
    "encoder": (lambda: Encoder(0.1), (2, 5, 32)),
    "batch normalization": (convolutions, (2, 3, 8, 8)),
}


def pooled() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(32, 32, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 36, 10),
    )  # fmt: skip


def runtimes_of(module: Any) -> set[str]:
    return {graph.runtime for graph in report(module).graphs}


@pytest.mark.parametrize(("make", "shape"), NETWORKS.values(), ids=NETWORKS)
def test_small_networks_train_in_fp32_as_eager_does(make: Any, shape: Any) -> None:
    module = make()
    assert worst_of_steps(module, [(torch.randn(shape),) for _ in range(3)], runtime="openvino") < 2e-6
    assert runtimes_of(module) == {"openvino"}
    assert str(report(module)).count("runs on cpu in openvino") == len(report(module).graphs)
    assert not any(graph.plan.low_nodes for graph in report(module).graphs)


def test_max_pools_are_lowered_and_gradients_are_those_of_eager() -> None:
    module = pooled()
    batches = [(torch.randn(4, 3, 16, 16),)]
    assert worst_of_steps(module, batches, runtime="openvino", keep_fp32=[".*"]) < 2e-6
    (graph,) = report(module).graphs
    pools = [d for d in graph.plan.decisions if d.op_type == "MaxPool"]
    assert len(pools) == 1


@pytest.mark.usefixtures("bf16_units")
def test_products_in_bf16_are_as_exact_as_under_autocast() -> None:
    module = nn.Sequential(
        nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)
    )
    x = torch.randn(256, 512)
    exact = copy.deepcopy(module).double()
    true_output, expected = gradients(lambda: exact(x.double()), exact)
    with torch.autocast("cpu", torch.bfloat16):
        output, rounded = gradients(lambda: module(x), module)
    theirs = distance([output, *rounded], [true_output, *expected])
    run = compiled(module, runtime="openvino")
    output, rounded = gradients(lambda: run(x), module)
    ours = distance([output, *rounded], [true_output, *expected])
    (graph,) = report(module).graphs
    assert graph.plan.low is Precision.BF16
    low = [
        d for d in graph.plan.decisions if d.node in graph.plan.low_nodes and d.op_type in ("Gemm", "MatMul")
    ]
    assert len(low) == 8  # three forward, five backward
    assert 1e-4 < ours < 1.5 * theirs
    assert all(p.grad.dtype is torch.float32 for p in module.parameters())


def test_nothing_is_copied_on_the_way_in_or_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[list[int], list[int]]] = []
    run = AddressedRequest.run

    def watched(self: Any, read_at: Any, written_at: Any) -> None:
        ran.append((list(read_at), list(written_at)))
        run(self, *ran[-1])

    monkeypatch.setattr(AddressedRequest, "run", watched)
    module, x = Encoder(0.0), torch.randn(2, 5, 32)
    call = compiled(module, runtime="openvino")
    gradient = torch.randn_like(call(x).detach())
    call(x).backward(gradient)
    module.zero_grad()
    ran.clear()
    with profile(use_kineto=False) as seen:
        y = call(x)
        y.backward(gradient)
    assert not [event for event in seen.key_averages() if event.key == "aten::copy_"]
    forward, backward = ran
    assert y.data_ptr() in forward[1]
    assert x.data_ptr() in forward[0]
    weights = {p.data_ptr() for p in module.parameters()}
    assert weights & {*forward[0]}
    assert {p.grad.data_ptr() for p in module.parameters()} <= {*backward[1]}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_training_takes_no_more_memory_step_by_step() -> None:
    module = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    call, x = compiled(module, runtime="openvino"), torch.randn(64, 512)
    optimizer = torch.optim.SGD(module.parameters(), 1e-3)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)  # new gradients, at new addresses
            call(x).square().mean().backward()
            optimizer.step()

    train(20)
    before = resident_bytes()
    train(60)
    assert resident_bytes() - before < 8 << 20  # gradients alone are 2 MB a step


def test_the_report_gives_no_advice_about_threads() -> None:
    module = perceptron(0.0)
    compiled(module, runtime="openvino")(torch.randn(3, 4)).sum().backward()
    assert "OMP_" not in str(report(module))


def test_a_small_last_batch_does_not_choose_for_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def times_us(runs: Any) -> dict[str, float]:
        tried.append(len(runs))
        is_small = len(tried) == 2
        return {name: 1.0 if (name == "onnxruntime") is is_small else 2.0 for name in runs}

    monkeypatch.setattr(choosing, "times_us", times_us)
    module = perceptron(0.0)
    assert worst_of_steps(module, [(torch.randn(n, 4),) for n in (64, 3, 64, 5, 64)], runtime="auto") < 2e-6
    at = {graph.sizes: graph.runtime for graph in report(module).graphs}
    assert at[(64,)] == "openvino"
    assert at[(3,)] == "onnxruntime"
    assert at[(5,)] == "openvino"  # as at the next larger sizes, without a trial
    assert tried == [2, 2, 2]


def test_a_larger_batch_is_tried_although_a_graph_of_any_size_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        choosing, "times_us", lambda runs: {name: float(name != "onnxruntime") for name in runs}
    )
    module = perceptron(0.0)
    run = compiled(module, runtime="auto", dynamic=True)
    for n in (5, 3, 4, 6, 7, 5):
        run(torch.randn(n, 4)).sum().backward()
    assert any("any size" in graph.kind for graph in report(module).graphs)
    monkeypatch.setattr(
        choosing, "times_us", lambda runs: {name: float(name == "onnxruntime") for name in runs}
    )
    run(torch.randn(64, 4)).sum().backward()
    assert (64,) in {graph.sizes for graph in report(module).graphs if graph.runtime == "openvino"}


def test_the_report_says_what_was_tried() -> None:
    module = perceptron(0.0)
    compiled(module, runtime="auto")(torch.randn(3, 4)).sum().backward()
    (graph,) = report(module).graphs
    assert {trial.runtime for trial in graph.trials} == {"onnxruntime", "openvino"}
    assert all(trial.step_us > 0 for trial in graph.trials)
    assert graph.runtime == min(graph.trials, key=lambda trial: trial.step_us).runtime
    assert "tried here: onnxruntime in fp32" in str(report(module))


def test_each_set_of_sizes_runs_there() -> None:
    module = perceptron(0.0)
    batches = [(torch.randn(size, 4),) for size in (3, 5, 7, 9, 11, 13)]
    assert worst_of_steps(module, batches, runtime="openvino", dynamic=True) < 2e-6
    assert runtimes_of(module) == {"openvino"}


def test_inference_runs_there() -> None:
    module, x = convolutions().eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        assert distance([compiled(module, runtime="openvino")(x)], [module(x)]) < 1e-6
    assert runtimes_of(module) == {"openvino"}


@pytest.mark.parametrize("fastest", ["onnxruntime", "openvino"])
def test_the_faster_runtime_is_taken_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fastest: str
) -> None:
    measured: list[set[str]] = []

    def times_us(runs: Any) -> dict[str, float]:
        measured.append(set(runs))
        real = choosing_times(runs)
        assert all(time > 0 for time in real.values())
        return {name: 1.0 if name == fastest else 2.0 for name in runs}

    choosing_times = choosing.times_us
    monkeypatch.setattr(choosing, "times_us", times_us)

    def train() -> set[str]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        module = Encoder(0.0)
        assert worst_of_steps(module, [(torch.randn(2, 5, 32),)], runtime="auto", plans=tmp_path) < 2e-6
        return runtimes_of(module)

    assert train() == {fastest}
    assert train() == {fastest}
    assert measured == [{"onnxruntime", "openvino"}]
    (choice,) = tmp_path.glob("runtime-*.json")
    assert json.loads(choice.read_text())["runtime"] == fastest
    choice.write_text("{")
    assert train() == {fastest}
    assert len(measured) == 2


def test_by_default_another_process_neither_plans_nor_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans, the form of convolutions and the measured choice lie in the user's cache."""
    planned: list[Any] = []
    decide = pipeline.decide

    def counted(*arguments: Any) -> Any:
        planned.append(arguments[2].target.runtime.name)
        return decide(*arguments)

    monkeypatch.setattr(pipeline, "decide", counted)
    monkeypatch.setattr(choosing, "times_us", lambda runs: {"onnxruntime": 2.0, "openvino": 1.0})

    def train() -> None:
        torch._dynamo.reset()
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
        call = torch.compile(module, backend="campo_onnx")
        call(torch.randn(2, 3, 8, 8)).sum().backward()
        assert runtimes_of(module) == {"openvino"}

    train()
    assert set(planned) == {"onnxruntime", "openvino"}
    planned.clear()
    monkeypatch.setattr(choosing, "times_us", lambda runs: pytest.fail("it is measured again"))
    train()
    assert planned == []


def test_doubles_stay_with_onnx_runtime() -> None:
    module, x = nn.Linear(4, 2).double(), torch.randn(3, 4, dtype=torch.float64)
    actual = compiled(module, runtime="auto")(x)
    assert distance([actual.detach()], [module(x).detach()]) < 1e-15
    assert runtimes_of(module) == {"onnxruntime"}


def test_whole_numbers_beyond_32_bits_stay_with_onnx_runtime() -> None:
    class Hashes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, words: Any) -> Any:
            return self.scale * ((words * 2**33) // 2**31)

    module = Hashes()
    assert worst_of_steps(module, [(torch.arange(3),)], runtime="auto") < 2e-6
    assert runtimes_of(module) == {"onnxruntime"}


def test_of_many_sizes_larger_ones_are_measured_and_then_one_graph_runs_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[set[str]] = []

    def times_us(runs: Any) -> dict[str, float]:
        measured.append(set(runs))
        return {"onnxruntime": 2.0, "openvino": 1.0}

    monkeypatch.setattr(choosing, "times_us", times_us)
    module = perceptron(0.0)
    batches = [(torch.randn(size, 4),) for size in (2, 3, 5, 7, 11, 13)]
    assert worst_of_steps(module, batches, runtime="auto", dynamic=True) < 2e-6
    assert len(measured) == 5  # 13 is less than 1.25 times 11
    assert runtimes_of(module) == {"onnxruntime", "openvino"}


def test_an_fp16_plan_is_onnx_runtimes() -> None:
    module = perceptron(0.0)
    assert worst_of_steps(module, [(torch.randn(3, 4),)], runtime="auto", precision="fp16") < 2e-6
    assert worst_of_steps(module, [(torch.randn(3, 4),)], runtime="auto", device="v100") < 1e-2
    assert runtimes_of(module) == {"onnxruntime"}


@pytest.fixture
def refuses_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    support = kernels.support

    def without_tanh(signature: Any, precision: Any) -> Support:
        return Support.REFUSED if signature.op.op_type == "Tanh" else support(signature, precision)

    monkeypatch.setattr(kernels, "support", without_tanh)


@pytest.mark.usefixtures("refuses_tanh")
def test_a_graph_that_it_refuses_runs_in_onnx_runtime_and_that_is_said() -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(3, 4)
    with pytest.warns(
        RuntimeWarning, match="in onnxruntime instead of openvino: openvino refuses 1 operator"
    ) as told:
        worst = worst_of_steps(module, [(x,), (x,)], runtime="openvino", fallback="torch")
    assert len(told) == 1
    assert "Tanh" in str(told[0].message)
    assert worst < 2e-6
    assert runtimes_of(module) == {"onnxruntime"}
    torch._dynamo.reset()
    assert worst_of_steps(module, [(x,)], runtime="auto") < 2e-6
    torch._dynamo.reset()
    with pytest.raises(Exception, match="openvino refuses 1 operator") as raised:
        worst_of_steps(module, [(x,)], runtime="openvino")
    assert "does not run Tanh" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runtime": "openvin"}, "unknown runtime 'openvin'"),
        ({"runtime": "openvino", "precision": "fp16"}, "openvino does not compute in fp16"),
        ({"runtime": "openvino", "device": "v100"}, "openvino runs plans for CPUs"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: Any, message: str) -> None:
    from campo_onnx.integrations.torch_compile.settings import Settings

    with pytest.raises(UsageError, match=message):
        Settings.of(options)


def test_without_openvino_auto_is_onnx_runtime_and_its_name_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from campo_onnx.integrations.torch_compile.settings import Settings
    from campo_onnx.runtime.openvino import installed, runtime

    missing = (None, *installed.problem_with(None, "No module named 'openvino'", ""))
    monkeypatch.setattr(installed, "_loaded", lambda: missing)
    assert runtime.RUNTIME.problem("cpu")
    assert Settings.of({"runtime": "auto"}).runtimes("cpu") == ("onnxruntime",)
    with pytest.raises(DeviceUnavailableError, match=r"OpenVINO is not installed.*pip install"):
        Settings.of({"runtime": "openvino"})
