"""The models of torch through the backend of torch.compile, held against FP64 as the exported ones are.

    python -m benchmarks.models.compiled [--only STEP,...] [--limit-s S]

``fallback="error"``: what the backend takes, it takes whole. Recurrent layers are handed to it
(``torch._dynamo.config.allow_rnn``). Runs until it says that all is done; killed, it goes on where it was.
Writes results/models_compiled.json and .md.
"""

import torch

from benchmarks.models import exactness, with_torch
from benchmarks.models.case import Case
from benchmarks.models.table import Build, Row, drawn, make, of_torch
from campo_onnx.integrations.torch_compile import campo_onnx, report

_OPTIONS = {"fallback": "error", "runtime": "onnxruntime"}


def row(build: Build) -> Row:
    """Train a model through the backend, which takes it whole or not at all, and in torch."""
    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch._dynamo.config.allow_rnn = True
    draw = drawn(build)
    module = draw(0).module
    run = torch.compile(module, backend=campo_onnx, dynamic=False, options=_OPTIONS)

    def train(case: Case) -> exactness.Trained:
        module.load_state_dict(case.module.state_dict())
        return with_torch.trained(module, lambda: case.loss(run(**case.inputs), **case.targets))

    comparison = exactness.compared(draw, with_torch.TORCH, train)
    graphs = report(module).graphs
    return {**comparison, "graphs": len(graphs), "kinds": sorted({graph.kind for graph in graphs})}


if __name__ == "__main__":
    packages = ("torch", "transformers", "timm", "diffusers")
    make("models_compiled", __doc__, "models_out/compiled", of_torch(row), *packages)
