"""Blocks of pages that go on from something of the reader's own: run on a small network."""

import warnings

import numpy as np
import pytest

from tests.test_docs import blocks, free_names

torch = pytest.importorskip("torch")

RUN_ELSEWHERE = {"tutorial.md"}  # tests/test_docs.py runs its blocks as one program


def reader(folder):
    """Objects that a reader has: a network, its step in FP32 and mixed, a session's state, and batches."""
    from campo_onnx import Options, oplists, optimize_model, target
    from campo_onnx.export.torch import SGD, export_training_step
    from campo_onnx.export.torch.state_dict import first_state
    from campo_onnx.training.session import TrainingSession
    from campo_onnx.training.weight_update import WeightUpdate

    torch.manual_seed(0)

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.LayerNorm, self.fc = torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)

        def forward(self, values):
            return self.fc(self.LayerNorm(values))

    module, loss = Network(), torch.nn.functional.cross_entropy
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    step = export_training_step(module, loss, x, y, optimizer=SGD(), path=folder / "step.onnx")
    options = Options(target=target("v100"), lists=oplists("campo"), strategy="fine-grained")
    mixed = optimize_model(step, options).model
    (folder / "step_mixed.onnx").write_bytes(mixed.SerializeToString())
    names = [value.name for value in step.graph.input]
    (data,) = (name for name in names if name.startswith("input."))
    (label,) = (name for name in names if name.startswith("target."))
    batch = {data: x.numpy(), label: y.numpy()}
    state = first_state(module, step)
    feeds = batch | state | {"lr": np.float32(0.1), "loss_scale": np.float32(1024)}
    return {
        "torch": torch, "Dim": torch.export.Dim,
        "TrainingSession": TrainingSession, "WeightUpdate": WeightUpdate,
        "export_training_step": export_training_step,
        "module": module, "model": module, "loss": loss, "x": x, "y": y, "inputs": x, "targets": y,
        "example_inputs": x, "example_targets": y, "step": step, "fp32_model": step, "mixed_model": mixed,
        "batch": batch, "batches": [batch] * 3, "first_state": state, "names": list(module.state_dict()),
        "feeds": {name: feeds[name] for name in names},
    }  # fmt: skip


def of_gradients(own):
    """The same network's step without the update of its weights."""
    step = own["export_training_step"](own["module"], own["loss"], own["x"], own["y"], unscale=False)
    return {"step": step}


def of_tokens(own):
    """A network of batches and lengths of any size."""

    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.tag = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 4)

        def forward(self, input_ids):
            return self.tag(self.words(input_ids)).transpose(1, 2)

    def loss(scores, labels):
        return torch.nn.functional.cross_entropy(scores, labels)

    ids, labels = torch.randint(0, 50, (4, 16)), torch.randint(0, 4, (4, 16))
    return {"module": Tagger(), "loss": loss, "inputs": {"input_ids": ids}, "targets": {"labels": labels}}


def of_jax(own):
    """A loss of JAX's."""
    jax = pytest.importorskip("jax")
    parameters = {"w": np.ones((8, 4), np.float32)}

    def loss(parameters, x, y):
        return ((jax.numpy.tanh(x @ parameters["w"]) - y) ** 2).mean()

    x, y = np.ones((16, 8), np.float32), np.ones((16, 4), np.float32)
    return {"loss": loss, "parameters": parameters, "x": x, "y": y}


# By a text of the block: what it needs beside, or in the place of, the reader's own.
SPECIAL = {
    "dynamic_shapes=": of_tokens,
    "WeightUpdate(optimizer=None)": of_gradients,
    "campo_onnx.export.jax": of_jax,
}


def fragments():
    return [
        block
        for block in blocks("python")
        if block.page.name not in RUN_ELSEWHERE
        and not block.why_not_run
        and free_names(block.text, str(block))
    ]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its own code
        return reader(folder), folder


@pytest.mark.parametrize("block", fragments(), ids=str)
def test_a_block_runs_on_what_a_reader_has(block, own, monkeypatch):
    names, folder = own
    monkeypatch.chdir(folder)
    names = dict(names)
    for text, more in SPECIAL.items():
        if text in block.text:
            names |= more(names)
    assert free_names(block.text, str(block)) <= names.keys()
    exec(compile(block.text, str(block), "exec"), names)
