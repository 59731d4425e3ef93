"""Steps whose batch changes its size: one file for a range of sizes, equal to eager at each of them."""

import numpy as np
import onnx
import pytest

pytest.importorskip("torch")
import torch
from torch.export import Dim
from torch.nn import functional

from campo_onnx.errors import CampoError, IndexOutOfRangeError, UsageError
from campo_onnx.export.optimizers import SGD
from campo_onnx.export.torch import export_evaluation, export_training_step
from campo_onnx.ir.importer import import_model
from campo_onnx.ir.size_ranges import SizeRange, ranges_of
from campo_onnx.ir.sizes.in_file import at
from campo_onnx.lowering.place import Place
from campo_onnx.lowering.sequence import as_it_runs
from campo_onnx.runtime.registry import load, machine
from campo_onnx.targets.target import target
from campo_onnx.training.session import TrainingSession
from campo_onnx.training.weight_update import WeightUpdate

BATCH = {"x": {0: "batch"}, "y": {0: "batch"}}


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(11, 16), torch.nn.Embedding(40, 16)
        self.norm, self.qkv = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48)
        self.head = torch.nn.Linear(16, 11)

    def forward(self, x):
        batch, length = x.shape
        h = self.words(x) + self.places(torch.arange(length))
        q, k, v = self.qkv(self.norm(h)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        read = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(h + read.transpose(1, 2).reshape(batch, length, 16))


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = torch.nn.Embedding(11, 32), torch.nn.LSTM(32, 32, batch_first=True)
        self.head = torch.nn.Linear(32, 11)

    def forward(self, x):
        return self.head(self.layer(self.words(x))[0])


class Pictures(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8)
        self.second, self.head = torch.nn.Conv2d(8, 8, 3, stride=2, padding=1), torch.nn.Linear(8, 5)

    def forward(self, x):
        h = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 2)
        return self.head(functional.adaptive_avg_pool2d(functional.relu(self.second(h)), 1).flatten(1))


def per_token(logits, y):
    return functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def tokens(batch, length):
    return torch.randint(0, 11, (batch, length)), torch.randint(0, 11, (batch, length))


def pictures(batch):
    return torch.randn(batch, 3, 16, 16), torch.randint(0, 5, (batch,))


def cross_entropy(logits, y):
    return functional.cross_entropy(logits, y)


LENGTH = Dim("length", max=40)
CASES = {
    "attention": (
        *(Attention, per_token, tokens, {"x": {0: "batch", 1: LENGTH}, "y": {0: "batch", 1: LENGTH}}),
        *((4, 12), [(4, 12), (3, 7), (2, 33), (9, 2), (16, 40), (2, 2), (8, 8)]),
    ),
    "recurrent": (Recurrent, per_token, tokens, BATCH, (4, 12), [(4, 12), (1, 12), (16, 12)]),
    "pictures": (Pictures, cross_entropy, pictures, BATCH, (8,), [(8,), (3,), (1,), (17,), (32,)]),
}


@pytest.mark.parametrize("name", CASES)
def test_one_file_is_eager_at_every_size(name: str) -> None:
    make, loss, batch_of, declared, example, sizes = CASES[name]
    torch.manual_seed(1)
    module = make()
    model = export_training_step(module, loss, *batch_of(*example), loss_scale=False, dynamic_shapes=declared)
    program = load(model, machine("cpu", 1))
    for each in sizes:
        x, y = batch_of(*each)
        state = {f"buf.{n}": b.numpy().copy() for n, b in module.named_buffers()}
        module.zero_grad()
        expected = loss(module(x), y)
        expected.backward()
        state |= {f"param.{n}": p.detach().numpy() for n, p in module.named_parameters()}
        names = {value.name for value in model.graph.input}
        feeds = {n: value for n, value in state.items() if n in names}
        results = program.run({**feeds, "input.x": x.numpy(), "target.y": y.numpy()})
        assert float(results["loss"]) == pytest.approx(expected.item(), rel=1e-5)
        largest = max(float(p.grad.norm()) for p in module.parameters())
        for n, p in module.named_parameters():
            error = np.linalg.norm(results[f"grad.{n}"] - p.grad.numpy())
            assert error <= 1e-4 * max(float(p.grad.norm()), 1e-2 * largest), (each, n)
        for n, b in module.named_buffers():
            if f"buf_out.{n}" in results:
                assert np.allclose(results[f"buf_out.{n}"], b.numpy(), rtol=1e-5, atol=1e-6)


def test_the_file_says_its_range_and_is_read_at_the_example() -> None:
    model = export_training_step(Pictures(), cross_entropy, *pictures(8), dynamic_shapes=BATCH)
    assert ranges_of(model) == {"batch": SizeRange(8, 1, 32)}
    imported = import_model(model)
    assert imported.view.shape("input.x") == (8, 3, 16, 16)
    assert import_model(model, {"batch": 5}).view.shape("target.y") == (5,)
    with pytest.raises(UsageError, match="cannot have size 33: the step holds from 1 to 32"):
        import_model(model, {"batch": 33})
    onnx.checker.check_model(model, full_check=True)


def test_numbers_of_sizes_have_values_when_it_is_planned() -> None:
    """A mean over 12 numbers is planned as a product with 1/12, not with something unknown."""
    model = export_training_step(
        torch.nn.Linear(4, 3), lambda o, y: ((o - y) ** 2).mean(), torch.zeros(4, 4), torch.zeros(4, 3),
        dynamic_shapes={"input": {0: "n"}, "y": {0: "n"}}, loss_scale=False,
    )  # fmt: skip
    values = import_model(model).view.values
    numbers = [float(v) for n, v in values.items() if n.startswith("by_size") and v.ndim == 0]
    assert any(abs(number) in (pytest.approx(1 / 12), pytest.approx(1 / 6)) for number in numbers)


def test_bound_to_sizes_it_is_the_export_at_them() -> None:
    model = export_training_step(Pictures(), cross_entropy, *pictures(8), dynamic_shapes=BATCH)
    bound = at(model, {"batch": 5})
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in bound.graph.input}
    assert shapes["input.x"] == [5, 3, 16, 16]
    assert not ranges_of(bound)
    assert not any(node.op_type == "Shape" for node in bound.graph.node)
    import_model(bound)


class Residual(torch.nn.Module):
    """Convolutions that have several forms each: strided, grouped, of one tap, of few channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 16, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(16)
        self.same, self.wide = torch.nn.Conv2d(16, 16, 3, 1, 1), torch.nn.Conv2d(16, 32, 3, 2, 1)
        self.short, self.deep = torch.nn.Conv2d(16, 32, 1, 2), torch.nn.Conv2d(32, 32, 3, 1, 1, groups=32)
        self.grouped, self.head = torch.nn.Conv2d(32, 64, 3, 1, 1, groups=4), torch.nn.Linear(64, 5)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 3, 2, 1)
        x = x + functional.relu(self.same(x))
        x = functional.relu(self.wide(x) + self.short(x))
        return self.head(functional.relu(self.grouped(self.deep(x))).mean((2, 3)))


PLACES = [("cpu", "onnxruntime"), ("zen4", "openvino"), ("v100", "onnxruntime"), ("h200", "onnxruntime")]


@pytest.mark.parametrize(
    ("place", "make", "wide"), [*((place, Residual, 32) for place in PLACES), (PLACES[0], Pictures, 16)]
)
def test_forms_are_chosen_at_the_example_and_hold_at_every_size(place, make, wide) -> None:
    torch.manual_seed(2)
    module = make()
    batch = torch.randn(8, 3, wide, wide), torch.randint(0, 5, (8,))
    model = export_training_step(module, cross_entropy, *batch, loss_scale=False, dynamic_shapes=BATCH)
    lowered = as_it_runs(import_model(model), Place(target=target(*place)))
    assert "convolutions" in lowered.passes
    assert ranges_of(lowered.model) == ranges_of(model) == {"batch": SizeRange(8, 1, 32)}
    portable, fast = load(model, machine("cpu", 1)), load(lowered.model, machine("cpu", 1))
    state = {f"param.{n}": p.detach().numpy() for n, p in module.named_parameters()}
    state |= {f"buf.{n}": b.numpy() for n, b in module.named_buffers()}
    names = {value.name for value in model.graph.input}
    for size in (1, 2, 8, 9, 32):
        x, y = torch.randn(size, 3, wide, wide), torch.randint(0, 5, (size,))
        feeds = {n: a for n, a in state.items() if n in names} | {"input.x": x.numpy(), "target.y": y.numpy()}
        expected, actual = portable.run(feeds), fast.run(feeds)
        largest = max(np.linalg.norm(a) for n, a in expected.items() if n.startswith("grad."))
        for name, value in expected.items():
            error = np.linalg.norm(actual[name] - value)
            least = 1e-2 * largest if name.startswith("grad.") else 0
            assert error <= 1e-5 * max(np.linalg.norm(value), least), (size, name)


def test_gradients_of_all_time_steps_are_one_product_at_every_size() -> None:
    torch.manual_seed(3)
    module, batch = Recurrent(), tokens(4, 12)
    model = export_training_step(module, per_token, *batch, loss_scale=False, dynamic_shapes=BATCH)
    lowered = as_it_runs(import_model(model), Place(target=target("cpu")))
    before, after = (sum(n.op_type == "Gemm" for n in m.graph.node) for m in (model, lowered.model))
    assert before - after == 11  # of twelve time steps
    portable, fast = load(model, machine("cpu", 1)), load(lowered.model, machine("cpu", 1))
    state = {f"param.{n}": p.detach().numpy() for n, p in module.named_parameters()}
    names = {value.name for value in model.graph.input}
    for size in (1, 4, 16):
        x, y = tokens(size, 12)
        feeds = {n: a for n, a in state.items() if n in names} | {"input.x": x.numpy(), "target.y": y.numpy()}
        actual = fast.run(feeds)
        for name, value in portable.run(feeds).items():
            assert np.linalg.norm(actual[name] - value) <= 1e-5 * np.linalg.norm(value), (size, name)


def test_evaluation_takes_a_last_batch() -> None:
    model = export_evaluation(Pictures(), cross_entropy, *pictures(8), dynamic_shapes=BATCH)
    assert ranges_of(model)["batch"].least == 1


class Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).tanh() if x.shape[0] > 6 else self.layer(x)


@pytest.mark.parametrize(
    ("module", "declared", "message"),
    [
        (Branches(), {"x": {0: "n"}}, "the graph at n=.* is another one than at n="),
        (Branches(), {"z": {0: "n"}}, "dynamic_shapes names 'z'"),
        (Branches(), {"x": {2: "n"}}, "'x' has 2 axes"),
        (Branches(), {"x": {0: "n", 1: "n"}}, "dimension 'n' has several sizes"),
        (Branches(), {"x": {0: Dim.AUTO}}, "Give each dimension a name"),
        (Branches(), {"x": {0: Dim("n", max=4)}}, "'x' has size 8 in dimension 'n'"),
        (Branches(), {"x": None}, "dynamic_shapes names no dimension"),
        (Branches(), ("x",), "dynamic_shapes is tuple"),
    ],
)
def test_what_does_not_hold_is_refused(module, declared, message: str) -> None:
    with pytest.raises(CampoError, match=message):
        export_training_step(module, lambda o: o.mean(), torch.zeros(8, 4), dynamic_shapes=declared)


@pytest.mark.parametrize(
    ("name", "optimizer"), [("attention", None), ("pictures", "sgd"), ("pictures", None)]
)
def test_a_session_takes_batches_of_every_size(name: str, optimizer: str | None) -> None:
    """Also a last partial batch: after some steps weights are torch's, whatever the sizes were."""
    make, loss, batch_of, declared, example, sizes = CASES[name]
    torch.manual_seed(2)
    module = make()

    def with_logits(out, y):
        return loss(out, y), {"logits": out}

    model = export_training_step(
        module, with_logits, *batch_of(*example), optimizer=optimizer, dynamic_shapes=declared
    )
    state = {f"param.{n}": p.detach().numpy().copy() for n, p in module.named_parameters()}
    state |= {f"buf.{n}": b.numpy().copy() for n, b in module.named_buffers()}
    names = {value.name for value in model.graph.input}
    state = {n: value for n, value in state.items() if n in names}
    update = None if optimizer else WeightUpdate(optimizer=SGD())
    session = TrainingSession(model, state, update=update, settings={"lr": 0.1}, provider="cpu")
    theirs = torch.optim.SGD(module.parameters(), lr=0.1)
    for each in [*sizes, *sizes[:2]]:
        x, y = batch_of(*each)
        theirs.zero_grad()
        logits = module(x)
        expected = loss(logits, y)
        expected.backward()
        theirs.step()
        result = session.step({"input.x": x.numpy(), "target.y": y.numpy()})
        assert result.loss == pytest.approx(expected.item(), rel=1e-4)
        assert result.metrics["output.logits"].shape == tuple(logits.shape)
        assert result.samples == each[0]
    for n, p in module.named_parameters():
        assert np.allclose(session.state()[f"param.{n}"], p.detach().numpy(), atol=2e-4), n


def test_a_session_refuses_sizes_and_labels_outside() -> None:
    torch.manual_seed(3)
    module = Attention()
    _, loss, batch_of, declared, example, _ = CASES["attention"]
    model = export_training_step(module, loss, *batch_of(*example), optimizer="sgd", dynamic_shapes=declared)
    state = {f"param.{n}": p.detach().numpy() for n, p in module.named_parameters()}
    session = TrainingSession(model, state, settings={"lr": 0.1}, provider="cpu")

    def step(x, y):
        return session.step({"input.x": x.numpy(), "target.y": y.numpy()})

    with pytest.raises(UsageError, match=r"'target\.y' has length=5: another part of the batch has 6"):
        step(tokens(3, 6)[0], tokens(3, 5)[1])
    with pytest.raises(UsageError, match="'length' cannot have size 41: the step holds from 2 to 40"):
        step(*tokens(3, 41))
    for wrong in (11, -1):
        x, y = tokens(5, 7)
        y[2, 3] = wrong
        with pytest.raises(IndexOutOfRangeError, match=f"the index {wrong} of 'target.y' is out of range"):
            step(x, y)
    before = session.state()
    step(*tokens(5, 7))
    assert any((before[n] != value).any() for n, value in session.state().items())


def test_openvino_runs_the_size_of_the_example() -> None:
    pytest.importorskip("openvino")
    torch.manual_seed(4)
    module = Pictures()
    model = export_training_step(
        module, cross_entropy, *pictures(8), optimizer="sgd", dynamic_shapes=BATCH, loss_scale=False
    )
    state = {f"param.{n}": p.detach().numpy().copy() for n, p in module.named_parameters()}
    state |= {f"buf.{n}": b.numpy().copy() for n, b in module.named_buffers()}
    names = {value.name for value in model.graph.input}
    state = {n: value for n, value in state.items() if n in names}
    session = TrainingSession(
        model, state, settings={"lr": 0.1}, provider="cpu", runtime="openvino", dims={"batch": 5}
    )
    x, y = pictures(5)
    result = session.step({"input.x": x.numpy(), "target.y": y.numpy()})
    assert result.loss == pytest.approx(cross_entropy(module(x), y).item(), rel=1e-4)
    with pytest.raises(UsageError, match=r"'input\.x' is float32\[8"):
        session.step({"input.x": pictures(8)[0].numpy(), "target.y": y.numpy()})
