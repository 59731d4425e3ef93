"""Exported steps as a whole: the update, loss scaling, names, and what is refused."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from campo_onnx.errors import UnsupportedModelError, UsageError
from campo_onnx.ir.importer import import_model

torch = pytest.importorskip("torch", reason="torch is not installed (make test-frameworks installs it)")

import torch.nn.functional as F
from against_torch import (
    TOLERANCE,
    Arrays,
    Function,
    Lookup,
    deviation,
    feeds_of,
    run,
    session,
    weighted_sum,
    worst_deviation,
)
from torch import nn

from campo_onnx.export.torch import LAMB, SGD, Adam, AdamW, Momentum, export_training_step


def small_net() -> Any:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
    )  # fmt: skip


OPTIMIZERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "sgd": ("sgd", lambda ps: torch.optim.SGD(ps, 0.05)),
    "sgd_decayed": (SGD(weight_decay=0.1), lambda ps: torch.optim.SGD(ps, 0.05, weight_decay=0.1)),
    "momentum": ("momentum", lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9)),
    "nesterov": (
        Momentum(momentum=0.8, nesterov=True, weight_decay=0.01),
        lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.8, nesterov=True, weight_decay=0.01),
    ),
    "adam": ("adam", lambda ps: torch.optim.Adam(ps, 0.05)),
    "adam_decayed": (Adam(weight_decay=0.1), lambda ps: torch.optim.Adam(ps, 0.05, weight_decay=0.1)),
    "adamw": (AdamW(beta2=0.95), lambda ps: torch.optim.AdamW(ps, 0.05, betas=(0.9, 0.95))),
}


@pytest.mark.parametrize(("optimizer", "reference"), OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_optimizers_step_like_torch(optimizer: Any, reference: Callable[[Any], Any]) -> None:
    # In double and on the same gradients, since Adam's m / sqrt(v) turns the noise of a gradient near
    # zero into a step of full size: only the update itself is compared.
    parameters = {"weight": torch.randn(5, 4), "bias": torch.randn(4)}
    module = nn.Module()
    for name, value in parameters.items():
        module.register_parameter(name, nn.Parameter(value))
    module.forward = lambda x, y: (module.weight * x).sum() + (module.bias * y).sum()
    x, y = torch.zeros(5, 4), torch.zeros(4)
    model = export_training_step(module, lambda loss: loss, [x, y], optimizer=optimizer)
    torch_optimizer = reference(list(module.parameters()))
    running = session(model)
    scalars = {"lr": np.float32(0.05), "loss_scale": np.float32(1024), "step": np.int64(0)}
    feeds = feeds_of(model, module, [x, y], **scalars)
    for step in range(10):
        x, y = torch.randn(5, 4), torch.randn(4)
        module.weight.grad, module.bias.grad = x, y  # the gradients of this module are its inputs
        torch_optimizer.step()
        names = [value.name for value in model.graph.output]
        inputs = dict(zip([n for n in feeds if n.startswith("input.")], (x.numpy(), y.numpy()), strict=True))
        out = dict(zip(names, running.run(names, feeds | inputs), strict=True))
        assert out["grads_finite"]
        for name in parameters:
            assert deviation(out[f"new.{name}"], getattr(module, name).detach().numpy()) < 1e-6, step
        feeds = advanced(feeds, out)


def advanced(feeds: Arrays, out: Arrays) -> Arrays:
    """Feed the new state back."""
    renamed = {"param.": "new.", "buf.": "buf_out.", "opt.": "new_"}
    pairs = {
        name: new + name.removeprefix(old)
        for name in feeds
        for old, new in renamed.items()
        if name.startswith(old)
    } | {"step": "step_out"}
    return feeds | {name: out[new] for name, new in pairs.items() if new in out and name in feeds}


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_network_trains_like_torch_over_ten_steps(optimizer: str) -> None:
    module = small_net()
    x, y = torch.randn(16, 2, 8, 8), torch.randint(0, 3, (16,))
    model = export_training_step(module, F.cross_entropy, x, y, optimizer=optimizer)
    running, names = session(model), [value.name for value in model.graph.output]
    scalars = {"lr": np.float32(0.003), "loss_scale": np.float32(4096), "step": np.int64(0)}
    feeds = feeds_of(model, module, [x, y], **scalars)
    reference = OPTIMIZERS[optimizer][1](module.parameters())
    reference.param_groups[0]["lr"] = 0.003
    losses = []
    for _ in range(10):
        out = dict(zip(names, running.run(names, feeds), strict=True))
        feeds = advanced(feeds, out)
        reference.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        reference.step()
        losses.append(abs(float(out["loss"]) - loss.item()) / loss.item())
    assert max(losses) < 1e-4
    for name, buffer in module.named_buffers():
        assert deviation(out[f"buf_out.{name}"], buffer.numpy()) < 1e-3


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam_decayed", "adamw"])
def test_vectors_are_updated_together_at_most_32_at_a_time(optimizer: str) -> None:
    # While a CUDA graph is captured, ONNX Runtime joins no more; and the sizes differ.
    setting, reference = OPTIMIZERS[optimizer]
    module = nn.Module()
    module.terms = nn.ParameterList([torch.randn(1 + i % 5) for i in range(40)])
    module.forward = lambda x: sum((p.square() * x).sum() for p in module.terms)
    x = torch.randn(1)
    model = export_training_step(module, lambda loss: loss, x, optimizer=setting)
    cuts = [len(node.output) for node in model.graph.node if node.op_type == "Split"]
    assert max(cuts) == 32
    assert sum(node.op_type == "Where" for node in model.graph.node) <= 3 * 2 + 1  # of the count of updates
    feeds = feeds_of(model, module, [x], lr=np.float32(0.05), loss_scale=np.float32(8), step=np.int64(0))
    torch_optimizer = reference(list(module.parameters()))
    for _ in range(3):
        feeds = advanced(feeds, run(model, feeds))
        torch_optimizer.zero_grad()
        module(x).backward()
        torch_optimizer.step()
    for name, parameter in module.named_parameters():
        assert deviation(feeds[f"param.{name}"], parameter.detach().numpy()) < 1e-5


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize("scale", [math.inf, math.nan])
def test_an_overflow_leaves_everything_as_it_was(optimizer: str, scale: float) -> None:
    module = small_net()
    x, y = torch.randn(4, 2, 8, 8), torch.randint(0, 3, (4,))
    model = export_training_step(module, F.cross_entropy, x, y, optimizer=optimizer)
    scalars = {"lr": np.float32(0.1), "loss_scale": np.float32(scale), "step": np.int64(7)}
    feeds = feeds_of(model, module, [x, y], **scalars)
    for name in feeds:
        if name.startswith("opt."):
            feeds[name] = np.full_like(feeds[name], 0.25)
    out = run(model, feeds)
    assert not out["grads_finite"]
    assert np.isfinite(out["loss"])
    after = advanced(feeds, out)
    assert all(np.array_equal(after[name], feeds[name], equal_nan=True) for name in feeds)
    assert len(out) > len(list(module.parameters())) + 2  # parameters and buffers are outputs at all


@pytest.mark.parametrize("optimizer", [Adam(eps=0.0), LAMB(eps=0.0), LAMB()], ids=str)
def test_an_overflow_in_the_first_step_leaves_weights(optimizer: Any) -> None:
    # Without an epsilon the direction of no gradient at all is 0 / 0, and 0 times that is NaN.
    module, x = nn.Linear(3, 2), torch.randn(4, 3)
    model = export_training_step(module, lambda y: y.sum(), x, optimizer=optimizer)
    scalars = {"lr": np.float32(0.1), "loss_scale": np.float32(math.inf), "step": np.int64(0)}
    feeds = feeds_of(model, module, [x], **scalars)
    after = advanced(feeds, run(model, feeds))
    state = [name for name in feeds if name.startswith(("param.", "opt."))]
    assert all(np.array_equal(after[name], feeds[name]) for name in state)


def test_gradients_come_out_unscaled() -> None:
    module, x, y = nn.Linear(6, 5), torch.randn(8, 6), torch.randint(0, 5, (8,))
    model = export_training_step(module, F.cross_entropy, x, y)
    out = run(model, feeds_of(model, module, [x, y], loss_scale=np.float32(2**16)))
    F.cross_entropy(module(x), y).backward()
    assert deviation(out["grad.weight"], module.weight.grad.numpy()) < TOLERANCE
    assert out["grads_finite"]


def test_adam_survives_a_unit_without_gradient() -> None:
    # Silently wrong elsewhere: an epsilon of 1e-8 taken for zero, hence 0 / 0.
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    torch.nn.init.constant_(module[0].bias, -100.0)
    x = torch.randn(5, 3)
    model = export_training_step(module, lambda y: y.sum(), x, optimizer="adam", loss_scale=False)
    out = run(model, feeds_of(model, module, [x], lr=np.float32(0.1), step=np.int64(0)))
    assert all(np.isfinite(value).all() for value in out.values())
    assert np.array_equal(out["new.0.weight"], module[0].weight.detach().numpy())


@pytest.mark.parametrize("opset", [20, 21])
def test_the_file_is_standard_static_and_anonymous(opset: int, tmp_path: Any) -> None:
    module = small_net()
    x, y = torch.randn(4, 2, 8, 8), torch.randint(0, 3, (4,))
    path = tmp_path / "step.onnx"
    model = export_training_step(module, F.cross_entropy, x, y, optimizer="adam", opset=opset, path=path)
    assert onnx.load(path) == model
    assert [(o.domain, o.version) for o in model.opset_import] == [("", opset)]
    assert not model.functions
    view = import_model(model).view
    assert all(info.shape is not None for info in view.tensors.values())
    content = path.read_bytes()
    for trace in (b".py", b"site-packages", b"/home", str(tmp_path).encode(), b"stack"):
        assert trace not in content


def test_nodes_are_named_after_modules() -> None:
    module = nn.ModuleDict({"encoder": nn.ModuleDict({"query": nn.Linear(4, 4)})})
    module.forward = lambda x: module["encoder"]["query"](x)
    model = export_training_step(module, weighted_sum, torch.ones(2, 4), optimizer="momentum")
    names = {node.name: node.op_type for node in model.graph.node}
    assert names["encoder.query/Gemm"] == "Gemm"
    assert any(name.startswith("encoder.query/grad/") and op == "Gemm" for name, op in names.items())
    assert any(name.startswith("encoder.query.weight/update/") for name in names)
    assert any(name.startswith("loss/") for name in names)
    assert len(names) == len(model.graph.node)


def test_inputs_are_named_after_arguments_and_may_go_by_keyword() -> None:
    inputs = {"types": torch.zeros(2, 4, dtype=torch.int64), "words": torch.zeros(2, 4, dtype=torch.int64)}
    model = export_training_step(Lookup(), weighted_sum, inputs)
    assert [v.name for v in model.graph.input if v.name.startswith("input.")] == [
        "input.types",
        "input.words",
    ]


def test_the_finite_check_takes_one_node_per_gradient() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Conv1d(3, 2, 1))
    model = export_training_step(module, weighted_sum, torch.ones(2, 3, 4))
    check = [node.op_type for node in model.graph.node if node.name.startswith("loss_scale/")]
    assert sorted(check) == sorted([*["Mul", "ReduceL1"] * 4, "Reciprocal", "Sum", "Sub", "Equal"])


def test_exporting_changes_nothing() -> None:
    module = small_net()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    export_training_step(module, F.cross_entropy, torch.randn(4, 2, 8, 8), torch.randint(0, 3, (4,)))
    assert all(torch.equal(before[n], t) for n, t in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in module.modules())


def test_a_module_without_data_can_be_exported() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(50_000, 20_000), nn.ReLU(), nn.Linear(20_000, 10))
    model = export_training_step(
        module, F.cross_entropy, torch.zeros(2, 50_000), torch.zeros(2, dtype=torch.long)
    )
    assert model.ByteSize() < 20_000


def test_frozen_and_unused_parameters_have_no_gradient() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    module.unused = nn.Parameter(torch.ones(3))
    module.forward = lambda x: module[1](module[0](x))
    model = export_training_step(module, weighted_sum, torch.ones(3, 4), optimizer="sgd")
    outputs = {value.name for value in model.graph.output}
    assert {"new.0.bias", "new.1.weight", "new.1.bias"} <= outputs
    assert not {"new.0.weight", "new.unused"} & outputs
    assert "param.unused" not in {value.name for value in model.graph.input}


def test_tied_weights_get_one_gradient() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    assert worst_deviation(module, weighted_sum, [torch.randn(3, 4)], []) < TOLERANCE


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        y = self.inner(x)
        return y if y.sum() > 0 else -y


@pytest.mark.parametrize(
    ("module", "loss", "options", "error", "message"),
    [
        (Decides(), weighted_sum, {}, UnsupportedModelError, "looks at the data"),
        (nn.Linear(2, 2), lambda y: y, {}, UsageError, r"not a scalar but a tensor of shape \(3, 2\)"),
        (nn.Linear(2, 2), lambda y: 1.0, {}, UsageError, "not a scalar but float"),
        (nn.Linear(2, 2), lambda y: y.detach().sum(), {}, UsageError, "does not depend"),
        (Function(torch.linalg.svdvals, 2, 2), lambda y: y.sum(), {}, UnsupportedModelError, "_linalg_svd"),
        (Function(torch.nonzero, 2, 2), lambda y: y.sum(), {}, UnsupportedModelError, "nonzero"),
        (nn.Linear(2, 2).half(), weighted_sum, {}, UnsupportedModelError, "'weight' is torch.float16"),
        (nn.Linear(2, 2), weighted_sum, {"optimizer": "lion"}, UsageError, "adamw"),
        (nn.Linear(2, 2), weighted_sum, {"opset": 17}, UsageError, "opset 17"),
        (nn.Linear(2, 2), weighted_sum, {"target": "x"}, UsageError, "unknown device 'x'"),
    ],
    ids=["control_flow", "vector", "number", "detached", "unknown_op", "nonzero", "half", "name", "opset",
        "form"],
)  # fmt: skip
def test_refusals_name_what_is_wrong(
    module: Any, loss: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        export_training_step(
            module, loss, torch.ones(3, 2) if "Linear" in repr(module) else torch.ones(2, 2), **options
        )


def test_constants_and_positional_arguments() -> None:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.factors = nn.Linear(4, 4), torch.arange(1.0, 5)

        def forward(self, *tensors: Any) -> Any:
            return {"out": self.layer(tensors[0]) * self.factors + tensors[1]}

    inputs = [torch.randn(3, 4), torch.randn(3, 4)]
    assert worst_deviation(Scales(), lambda y: (y["out"] ** 2).mean(), inputs, []) < TOLERANCE


def test_recomputation_reads_the_inputs_and_adds_no_nodes() -> None:
    # Silently wrong elsewhere: what is run again in the backward pass finds the module's own weights,
    # which become constants.
    class Checkpointed(nn.Module):
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.layer, self.function = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), function

        def forward(self, x: Any) -> Any:
            return self.function(self.layer, x)

    def checkpointed(layer: Any, x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)

    counts = [
        len(export_training_step(Checkpointed(function), weighted_sum, torch.ones(3, 4)).graph.node)
        for function in (checkpointed, lambda layer, x: layer(x))
    ]
    assert counts[0] == counts[1]


def test_weights_hidden_from_the_module_are_refused() -> None:
    class Hides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shown, self.hidden = nn.Linear(4, 4), [nn.Linear(4, 3)]

        def forward(self, x: Any) -> Any:
            return self.hidden[0](self.shown(x))

    with pytest.raises(UnsupportedModelError, match="ModuleList"):
        export_training_step(Hides(), weighted_sum, torch.ones(3, 4))


class Slope(nn.Module):
    """A network and its slope by the input."""

    def __init__(self, *, asks: bool) -> None:
        super().__init__()
        self.body, self.asks = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), asks

    def forward(self, x: Any) -> Any:
        if self.asks:
            x.requires_grad_()
        y = self.body(x)
        return y + torch.autograd.grad(y.sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("asks", [True, False])
def test_forward_may_differentiate_by_its_input(asks: bool) -> None:
    x = torch.randn(5, 2, requires_grad=not asks)
    assert worst_deviation(Slope(asks=asks), nn.functional.mse_loss, [x], [torch.randn(5, 2)]) < TOLERANCE


class Residual(nn.Module):
    """The residual of a differential equation, by the ways of `torch.func` to derive a module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Any) -> Any:
        def value(point: Any) -> Any:
            return torch.func.functional_call(self.layers, dict(self.layers.named_parameters()), point).sum()

        slope, curvature = (torch.func.vmap(of(value))(x) for of in (torch.func.grad, torch.func.hessian))
        turned = torch.func.vmap(torch.func.jacfwd(torch.func.jacrev(value)))(x)
        along = torch.func.jvp(self.layers, (x,), (torch.ones_like(x),))[1]
        return slope[:, :1] * along + curvature[:, 1, 1:] - turned[:, 0, :1] * self.layers(x)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_forward_may_differentiate_in_either_mode() -> None:
    assert worst_deviation(Residual(), weighted_sum, [torch.randn(5, 2)], []) < TOLERANCE
