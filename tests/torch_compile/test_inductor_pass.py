"""A precision plan as a pass within torch's own compiler."""

import copy
import subprocess
import sys
from collections.abc import Callable
from itertools import chain, combinations
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

from against_eager import distance
from small_networks import NETWORKS, Interpreted, MadeUpTimes, convolutions, loss_of, planned_step, words
from torch import nn

from campo_onnx.errors import UsageError
from campo_onnx.integrations.inductor.choice import Choices, KernelTime, StoredValue
from campo_onnx.integrations.inductor.library import LIBRARY, is_candidate, operands
from campo_onnx.integrations.inductor.options import inductor_pass
from campo_onnx.integrations.inductor.times import MeasuredClock
from campo_onnx.integrations.torch_compile import Settings

aten = torch.ops.aten
LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_as_close_to_fp64_as_those_of_autocast(name: str):
    make, batch = NETWORKS[name]
    module, x = make(), batch()
    eager, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(eager, x)
    loss.backward()
    loss_of(exact, x.double() if x.is_floating_point() else x).backward()
    expected = [p.grad for p in exact.parameters()]

    backend, actual = planned_step(module, x)

    (planned,) = backend.plan.planned
    assert planned.low
    assert not planned.unchanged
    assert all(g.dtype == torch.float32 for g in actual)
    assert 0.0 < distance(actual, expected) <= 2 * distance([p.grad for p in eager.parameters()], expected)


@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_read_the_types_of_the_plan(name: str, precision: str):
    make, batch = NETWORKS[name]
    slow = {aten.convolution_backward.default: 200.0, aten.addmm.default: 200.0}
    backend, _ = planned_step(make(), batch(), times=MadeUpTimes(slow), precision=precision)

    (planned,) = backend.plan.planned
    low = {name for name, types in backend.kernels.items() if LOW[precision] in types}
    wide = {name for name, types in backend.kernels.items() if LOW[precision] not in types}
    assert low == set(planned.low)
    assert low
    assert wide
    assert len(low | wide) == planned.kernels
    assert not any(name.startswith(("addmm", "convolution_backward")) for name in low)
    # Attention keeps its statistics; of all other low kernels every operand is low.
    mixed = {name for name in low if backend.kernels[name] != {LOW[precision]}}
    assert all("attention" in name and "backward" in name for name in mixed)


def test_readers_share_one_low_copy():
    backend, _ = planned_step(NETWORKS["bert"][0](), words())
    for gm in backend.graphs:
        casts = [n for n in gm.graph.nodes if n.target is torch.ops.prims.convert_element_type.default]
        assert len({(n.args[0], n.args[1]) for n in casts}) == len(casts)
    assert backend.plan.planned[0].stored_low


def test_results_keep_their_types():
    module = nn.Linear(16, 16)
    backend = Interpreted(inductor_pass(clock=MadeUpTimes()))
    x = torch.randn(4, 16, requires_grad=True)
    y = torch.compile(module, backend=backend)(x)
    y.sum().backward()
    assert backend.plan.planned[0].low
    assert {t.dtype for t in (y, x.grad, module.weight.grad, module.bias.grad)} == {torch.float32}


def test_running_statistics_stay_fp32():
    module, x = convolutions(), NETWORKS["cnn"][1]()
    exact = copy.deepcopy(module)
    planned_step(module, x)
    loss_of(exact, x)
    for ours, theirs in zip(module.buffers(), exact.buffers(), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.allclose(ours, theirs, rtol=0.02, atol=1e-3)


def test_sizes_may_change():
    module = NETWORKS["gpt2"][0]()
    backend = Interpreted(inductor_pass(clock=MadeUpTimes()))
    step = torch.compile(loss_of, backend=backend)
    for size in (3, 5, 7):
        x = words(size)
        torch._dynamo.mark_dynamic(x, 0)
        eager = copy.deepcopy(module)
        step(module, x).backward()
        loss_of(eager, x).backward()
        assert distance([p.grad for p in module.parameters()], [p.grad for p in eager.parameters()]) < 0.05
        module.zero_grad()
    (planned,) = backend.plan.planned
    assert planned.low


def test_inference_is_left_as_it_is():
    backend = Interpreted(inductor_pass(clock=MadeUpTimes()))
    module, x = NETWORKS["encoder"][0]().eval(), torch.randn(2, 6, 16)
    with torch.no_grad():
        y = torch.compile(module, backend=backend, fullgraph=True)(x)
        assert torch.equal(y, module(x)) or torch.allclose(y, module(x), rtol=1e-5, atol=1e-6)
    assert backend.plan.planned == []
    assert set().union(*backend.kernels.values()) == {torch.float32}


def test_checkpointed_layers_run():
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = NETWORKS["bert"][0]()

        def forward(self, x: Any) -> Any:
            y = self.inner.embedding(x)
            for block in self.inner.blocks:
                y = torch.utils.checkpoint.checkpoint(block, y, use_reentrant=False)
            return self.inner.head(y)

    module, x = Checkpointed(), words()
    plain = copy.deepcopy(module.inner)
    backend, actual = planned_step(module, x)
    loss_of(plain, x).backward()
    assert backend.plan.planned[0].low
    assert distance(actual, [p.grad for p in plain.parameters()]) < 0.05
    assert len(backend.kernels) > 0


def test_what_a_kernel_cannot_gain_leaves_the_graph_alone():
    slow = dict.fromkeys(LIBRARY, 200.0)
    backend, _ = planned_step(NETWORKS["bert"][0](), words(), times=MadeUpTimes(slow))
    (planned,) = backend.plan.planned
    assert planned.unchanged
    assert not planned.low
    assert set().union(*backend.kernels.values()) == {torch.float32}


def test_casts_that_cost_more_than_kernels_gain_keep_fp32():
    backend, _ = planned_step(NETWORKS["bert"][0](), words(), times=MadeUpTimes(element_us=10.0))
    assert backend.plan.planned[0].unchanged


@pytest.mark.parametrize("has_mask", [False, True])
def test_attention_of_a_gpu_keeps_statistics_and_is_low_unless_a_mask_would_be(has_mask: bool):
    graph = torch.fx.Graph()

    def tensor(name: str, *shape: int, dtype: Any = torch.float32) -> Any:
        node = graph.placeholder(name)
        node.meta["val"] = torch.empty(shape, dtype=dtype, device="meta")
        return node

    grad, q, k, v, out = (tensor(name, 2, 2, 8, 8) for name in ("grad", "q", "k", "v", "out"))
    mask = tensor("mask", 2, 2, 8, 8) if has_mask else None
    statistics, seeds = tensor("statistics", 2, 2, 8), [tensor(n, 1, dtype=torch.int64) for n in ("s", "o")]
    read = (grad, q, k, v, mask, out, statistics, *seeds, 0.0, [True, True, True, False])
    backward = graph.call_function(aten._scaled_dot_product_efficient_attention_backward.default, read)
    forward = graph.call_function(
        aten._scaled_dot_product_efficient_attention.default, (q, k, v, mask, True, 0.0, False)
    )
    assert is_candidate(forward) is is_candidate(backward) is not has_mask
    wide = {node for node, becomes_low in operands(backward) if not becomes_low}
    assert wide == {statistics, *seeds}


def test_a_graph_under_autocast_is_the_users():
    backend = Interpreted(inductor_pass(clock=MadeUpTimes()))
    module = nn.Linear(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        torch.compile(module, backend=backend)(torch.randn(4, 8)).sum().backward()
    (planned,) = backend.plan.planned
    assert "autocast" in planned.unchanged


def test_what_the_user_converts_keeps_its_type():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, counts: Any) -> Any:
            wide = counts.float()
            return self.layer(wide) * (wide + 1).log()

    backend = Interpreted(inductor_pass(clock=MadeUpTimes()))
    torch.compile(Counting(), backend=backend)(torch.randint(0, 9, (3, 4))).sum().backward()
    (planned,) = backend.plan.planned
    assert planned.low
    assert not any(name.startswith("convert_element_type") for name in planned.stored_low)
    forward = backend.graphs[0].graph
    asked = [n for n in forward.nodes if "convert" in n.name and n.args[0].op == "placeholder"]
    assert torch.float32 in {n.args[1] for n in asked if not n.args[0].meta["val"].is_floating_point()}


def highest(_: Any, x: Any) -> Any:
    """Use an operation as it has no translation: the highest of some whole numbers, not of what was there."""
    places = (x[0] > 0).long()
    return x + torch.zeros(4, dtype=torch.int64).scatter_reduce(0, places, places, "amax", include_self=False)


LEFT_OUT: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "bessel": (lambda _, x: torch.special.bessel_j0(x.detach()) + x, "aten.special_bessel_j0.default"),
    "inverse": (lambda w, x: x @ torch.linalg.inv(w), "aten.linalg_inv_ex.default"),
    "highest": (highest, "aten.scatter_reduce.two"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_operations_without_a_translation_stay_fp32_and_nothing_is_refused(name: str):
    function, operation = LEFT_OUT[name]

    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
            self.weight = nn.Parameter(torch.randn(4, 4) + 4 * torch.eye(4))

        def forward(self, x: Any) -> Any:
            return self.last(function(self.weight, self.first(x)))

    module, x = Between(), torch.randn(4, 4)
    eager = copy.deepcopy(module)
    backend = Interpreted(inductor_pass(clock=MadeUpTimes()))
    torch.compile(module, backend=backend)(x).sum().backward()
    eager(x).sum().backward()

    (planned,) = backend.plan.planned
    assert operation in planned.untranslated
    assert planned.low
    pairs = [(a.grad, e.grad) for a, e in zip(module.parameters(), eager.parameters(), strict=True)]
    ours, theirs = zip(*(pair for pair in pairs if pair[1] is not None), strict=True)
    assert distance(ours, theirs) < 0.05


def test_dropout_draws_as_without_a_plan():
    module, x = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 4)), torch.randn(4, 8)
    results = []
    for times in (MadeUpTimes(), MadeUpTimes(dict.fromkeys(LIBRARY, 200.0))):
        torch._dynamo.reset()
        backend = Interpreted(inductor_pass(clock=times))
        torch.manual_seed(0)
        results.append(torch.compile(module, backend=backend)(x))
        assert bool(backend.plan.planned[0].low) is not bool(times.low_us)
    ours, theirs = results
    assert torch.allclose(ours, theirs, rtol=0.1, atol=0.05)
    assert not torch.equal(ours, theirs)


def test_modules_that_the_user_names_stay_fp32():
    backend, _ = planned_step(NETWORKS["bert"][0](), words(), keep_fp32=["head"])
    (planned,) = backend.plan.planned
    wide = [name for name, types in backend.kernels.items() if torch.bfloat16 not in types]
    assert len(wide) == 3  # the layer, and both of its gradients
    assert planned.low


def test_uuids_tell_plans_apart():
    passes = [
        inductor_pass(clock=MadeUpTimes()),
        inductor_pass("fp16", clock=MadeUpTimes()),
        inductor_pass(lists="tf2", clock=MadeUpTimes()),
        inductor_pass(keep_fp32=["a"], clock=MadeUpTimes()),
        inductor_pass(clock=MadeUpTimes(element_us=1.0)),
        inductor_pass(),
    ]
    assert len({one.uuid() for one in passes}) == len(passes)
    assert inductor_pass("bf16", clock=MadeUpTimes()).uuid() == passes[0].uuid()


def test_an_unknown_precision_is_refused():
    with pytest.raises(UsageError, match="unknown precision 'fp8'"):
        inductor_pass("fp8")
    with pytest.raises(UsageError, match="single string"):
        inductor_pass(keep_fp32="head")


def test_options_that_torch_does_not_take_are_refused():
    with pytest.raises(UsageError, match="does not take device, sessions"):
        Settings.of({"runtime": "torch", "device": "h200", "sessions": 3})
    assert Settings.of({"runtime": "torch", "precision": "fp16", "keep_fp32": ["head"]}).runtime == "torch"


def test_a_graph_that_cannot_be_planned_runs_as_it_is():
    class Picked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.layer(x[x[:, 0] > 0]).sum()

    module, x = Picked(), torch.randn(6, 4)
    backend = Interpreted(inductor_pass(clock=MadeUpTimes()))
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        pytest.warns(RuntimeWarning, match="leaves a graph in FP32"),
    ):
        loss = torch.compile(module, backend=backend, fullgraph=True)(x)
    loss.backward()
    assert torch.allclose(loss, module(x))
    (planned,) = backend.plan.planned
    assert "by data" in planned.unchanged
    assert not planned.low


# --- the choice ---


def random_choices(random: Random) -> Choices:
    kernels = {
        f"k{i}": KernelTime(fp32_us=random.choice((1.0, 3.0, 5.0)), low_us=random.choice((1.0, 2.0, 4.0)))
        for i in range(random.randint(1, 5))
    }
    values = []
    for i in range(random.randint(1, 5)):
        readers = tuple(random.sample(list(kernels), random.randint(0, len(kernels))))
        kind = random.choice(("given", "kernel", "generated"))
        groups, is_needed = random.randint(0, 2), random.random() < 0.3
        values.append(
            StoredValue(
                name=f"v{i}",
                cast_us=random.choice((0.3, 1.0, 3.0)),
                writer=random.choice(list(kernels)) if kind == "kernel" else None,
                is_generated=kind == "generated",
                readers=readers,
                groups=groups,
                is_needed_in_fp32=is_needed,
                may_be_low=kind == "generated" and bool(readers) and not is_needed and random.random() < 0.8,
            )
        )
    return Choices(kernels=kernels, values=values)


@pytest.mark.parametrize("seed", range(40))
def test_no_assignment_is_faster_than_the_chosen_one(seed: int):
    choices = random_choices(Random(seed))
    names = [*choices.kernels, *(v.name for v in choices.values if v.may_be_low)]
    every = chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))
    least_us = min(choices.predicted_us(frozenset(low)) for low in every)

    decision = choices.decide()

    assert decision.predicted_us == pytest.approx(least_us, abs=1e-9)
    assert decision.lower_bound_us == pytest.approx(least_us, abs=1e-9)
    assert decision.fp32_us == choices.predicted_us(frozenset())


def test_two_copies_cost_two_writes():
    kernels = {"a": KernelTime(fp32_us=9.0, low_us=1.0), "b": KernelTime(fp32_us=1.0, low_us=9.0)}
    value = StoredValue(name="v", cast_us=3.0, is_generated=True, readers=("a", "b"))
    choices = Choices(kernels=kernels, values=[value])
    # Reading FP32 and writing low takes 3 us: a write in FP32 2, one that is low 1.
    assert choices.predicted_us({"a", "b"}) == 10.0 + 1.0
    assert choices.predicted_us(set()) == 10.0 + 2.0
    assert choices.decide().low == {"a"}
    assert choices.predicted_us({"a"}) == 2.0 + 1.0 + 2.0


def test_a_value_is_stored_low_alone_only_where_all_kernels_read_it_low():
    kernels = {"a": KernelTime(fp32_us=9.0, low_us=1.0), "b": KernelTime(fp32_us=1.0, low_us=9.0)}
    value = StoredValue(
        name="v", cast_us=3.0, is_generated=True, readers=("a", "b"), groups=1, may_be_low=True
    )
    choices = Choices(kernels=kernels, values=[value])
    assert choices.predicted_us({"a", "v"}) == float("inf")
    assert choices.predicted_us({"a", "b", "v"}) == 10.0 + 1.0 + 1.0
    with pytest.raises(ValueError, match="stored low alone"):
        StoredValue(
            name="v", cast_us=1.0, is_generated=True, readers=("a",), is_needed_in_fp32=True, may_be_low=True
        )


# --- measured ---


def test_kernels_are_measured_once_and_filed(tmp_path, monkeypatch):
    from campo_onnx.integrations.inductor import times

    measured = []

    def counted(runners: Any, device: Any) -> Any:
        measured.append(len(runners))
        return actual(runners, device)

    def plan(precision: str) -> int:
        measured.clear()
        torch._dynamo.reset()
        backend = Interpreted(inductor_pass(precision, clock=MeasuredClock(tmp_path / "times.sqlite")))
        torch.compile(nn.Linear(16, 16), backend=backend)(torch.randn(4, 16)).sum().backward()
        (planned,) = backend.plan.planned
        assert planned.decision is not None
        assert planned.decision.fp32_us > 0
        return len(measured)

    actual = times._measured
    monkeypatch.setattr(times, "_measured", counted)
    assert plan("bf16") > 0
    assert set(measured) == {1, 2}  # casts alone, kernels in both types
    assert plan("bf16") == 0
    assert plan("fp16") > 0


def test_measuring_leaves_random_numbers_alone(tmp_path):
    module, x = nn.Linear(16, 16), torch.randn(4, 16)
    backend = Interpreted(inductor_pass(clock=MeasuredClock(tmp_path / "times.sqlite")))
    state = torch.get_rng_state()
    torch.compile(module, backend=backend)(x).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


def test_convolutions_are_measured_as_inductor_lays_them():
    times = MadeUpTimes()
    planned_step(convolutions(), NETWORKS["cnn"][1](), times=times)
    assert (aten.convolution.default, True) in times.asked


# --- with torch's own compiler to the end ---


def test_torchs_cache_gives_the_compiled_graph_of_the_same_plan_only():
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    def trained(times: MadeUpTimes) -> tuple[int, int, Any]:
        """Compile anew; graphs that were planned, graphs of torch's cache, and a gradient."""
        torch._dynamo.reset()
        counters.clear()
        plan = inductor_pass(clock=times)
        torch.manual_seed(0)
        model, x = nn.Linear(32, 32, bias=False), torch.randn(16, 32)
        torch.compile(model, options={"joint_custom_pre_pass": plan})(x).square().sum().backward()
        return len(plan.planned), counters["aot_autograd"]["autograd_cache_hit"], model.weight.grad

    with fresh_cache():
        *first, low = trained(MadeUpTimes())
        *again, same = trained(MadeUpTimes())
        *other, wide = trained(MadeUpTimes({aten.mm.default: 400.0}))
    assert (first, again, other) == ([1, 0], [0, 1], [1, 0])
    assert torch.equal(low, same)
    assert not torch.equal(low, wide)


def test_the_backend_runs_torch_with_the_plan(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where times are filed
    from torch._inductor.utils import run_and_get_code

    model, x = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)), torch.randn(4, 16)
    compiled = torch.compile(model, backend="campo_onnx", options={"runtime": "torch", "precision": "bf16"})
    y, code = run_and_get_code(lambda: compiled(x))
    assert torch.allclose(y, model(x), rtol=0.05, atol=0.05)
    assert any("extern_kernels" in text for text in code)


def test_importing_campo_onnx_does_not_import_torch():
    code = "import sys, campo_onnx; print('inductor_pass' in dir(campo_onnx), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
