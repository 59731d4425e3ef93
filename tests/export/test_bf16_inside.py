"""BF16 within FP32 training: exported as FP32 that is rounded where the framework rounds."""

import ml_dtypes
import numpy as np
import onnx
import pytest

from campo_onnx.runtime.registry import load, machine

BF16 = onnx.TensorProto.BFLOAT16


def types_of_results(model: onnx.ModelProto) -> set[tuple[str, int]]:
    """Operators with a BF16 result: Casts alone, or ONNX Runtime lacks a kernel."""
    types = {v.name: v.type.tensor_type.elem_type for v in (*model.graph.value_info, *model.graph.output)}
    return {(n.op_type, types.get(o, 0)) for n in model.graph.node for o in n.output if types.get(o) == BF16}


def test_a_module_that_computes_in_bf16() -> None:
    torch = pytest.importorskip("torch")
    from campo_onnx.export.torch import export_training_step

    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 3)
            self.register_buffer("scale", torch.tensor(3.3, dtype=torch.bfloat16))
            self.shift = torch.tensor(0.1, dtype=torch.bfloat16)

        def forward(self, x):
            h = self.first(x).to(torch.bfloat16)
            h = torch.nn.functional.gelu(h * self.scale + torch.full((), 0.3, dtype=torch.bfloat16))
            h = h.softmax(-1) * 16**0.5
            return self.second(h.float() + h.cumsum(1).float())

    torch.manual_seed(0)
    module, x = Mixed(), torch.randn(4, 8)
    model = export_training_step(module, lambda out: (out**2).mean(), x, loss_scale=False)
    assert types_of_results(model) == {("Cast", BF16)}
    feeds = {f"param.{n}": p.detach().numpy() for n, p in module.named_parameters()}
    feeds |= {"buf.scale": np.asarray(module.scale.float().numpy(), ml_dtypes.bfloat16), "input.x": x.numpy()}
    results = load(model, machine("cpu", 1)).run(feeds)
    loss = (module(x) ** 2).mean()
    loss.backward()
    assert float(results["loss"]) == pytest.approx(loss.item(), rel=1e-6)
    for name, parameter in module.named_parameters():
        # A rounding to BF16 may fall the other way where sums differ in the last bit of FP32.
        assert (
            np.linalg.norm(results[f"grad.{name}"] - parameter.grad.numpy()) <= 2e-3 * parameter.grad.norm()
        )


def test_a_jax_function_that_computes_in_bf16() -> None:
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    from campo_onnx.export.jax import export_training_step

    def loss(parameters, x):
        h = jnp.tanh(x.astype(jnp.bfloat16) @ parameters["w"].astype(jnp.bfloat16))
        return jnp.mean((h.astype(jnp.float32) + parameters["b"]) ** 2)

    generator = np.random.default_rng(0)
    parameters = {"w": generator.normal(size=(8, 4)).astype(np.float32), "b": np.zeros(4, np.float32)}
    x = generator.normal(size=(5, 8)).astype(np.float32)
    model = export_training_step(loss, parameters, {"x": x}, loss_scale=False)
    assert types_of_results(model) == {("Cast", BF16)}
    feeds = {f"param.{n}": p for n, p in parameters.items()} | {"input.x": x}
    names = {value.name for value in model.graph.input}
    assert names <= feeds.keys(), names
    results = load(model, machine("cpu", 1)).run({n: feeds[n] for n in names})
    value, gradients = jax.value_and_grad(loss)(parameters, x)
    assert float(results["loss"]) == pytest.approx(float(value), rel=2e-3)
    for name, gradient in gradients.items():
        error = np.linalg.norm(results[f"grad.{name}"] - np.asarray(gradient))
        assert error <= 5e-3 * np.linalg.norm(gradient), name
