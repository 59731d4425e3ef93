"""Make the graphs of this folder: a small encoder through ORTModule, a gated layer through artifacts.

Run with onnxruntime-training: ``python tests/data/ort/make.py FOLDER OPSET``. At opsets before 17 both hold
LayerNormalization or SimplifiedLayerNormalization in the standard domain, where ONNX has none.
"""

import io
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "integrations"))
FOLDER, OPSET = Path(sys.argv[1]), int(sys.argv[2])
os.environ["ORTMODULE_ONNX_OPSET_VERSION"] = str(OPSET)

import onnx
import torch
import torch_shim  # noqa: F401  # first, so that ORTModule meets the PyTorch it expects
from onnxruntime.training import artifacts
from onnxruntime.training.ortmodule import DebugOptions, LogLevel, ORTModule
from torch import nn
from torch.nn import functional as F


class Encoder(nn.Module):
    """One layer as BERT has it, with a mask of FP32's smallest number and epsilon 1e-12."""

    def __init__(self, words=48, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.words, self.types = nn.Embedding(words, width), nn.Embedding(2, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-12) for _ in range(3))
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head, self.dropout = nn.Linear(width, words), nn.Dropout(0.1)

    def forward(self, words, mask, label):
        added = (1.0 - mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
        x = self.dropout(self.norms[0](self.words(words) + self.types(torch.zeros_like(words))))
        batch, length, width = x.shape
        q, k, v = (
            part(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5 + added
        mixed = (self.dropout(torch.softmax(scores, -1)) @ v).transpose(1, 2).reshape(batch, length, width)
        x = self.norms[1](x + self.dropout(self.out(mixed)))
        x = self.norms[2](x + self.dropout(self.narrow(F.gelu(self.wide(x)))))
        return F.cross_entropy(self.head(x).flatten(0, 1), label.flatten())


class Gated(nn.Module):
    """Two layers around a normalization by the root mean square, which ONNX Runtime fuses."""

    def __init__(self, width=16):
        super().__init__()
        self.first, self.scale, self.last = (
            nn.Linear(width, 32),
            nn.Parameter(torch.ones(32)),
            nn.Linear(32, 8),
        )

    def forward(self, x, label):
        h = self.first(x)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        return F.cross_entropy(self.last(F.silu(h)), label)


def through_ortmodule(network, batch):
    """The graph that ORTModule runs, its sizes those of the batch."""
    module = ORTModule(network, DebugOptions(log_level=LogLevel.ERROR))
    manager = module._torch_module._execution_manager(True)
    _, exported = manager._graph_transition_manager.get_post_processed_model(batch, {})
    manager._initialize_graph_builder(exported)
    manager._detect_from_inputs(batch, {})
    manager._build_graph(manager._get_graph_transformer_config())
    model = manager._onnx_models.optimized_model
    values = zip(model.graph.input, batch, strict=False)  # weights follow
    sizes = {
        dim.dim_param: size
        for value, tensor in values
        for dim, size in zip(value.type.tensor_type.shape.dim, tensor.shape, strict=True)
    }
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    return model


def through_artifacts(network, batch, folder):
    """The training graph among the artifacts."""
    network.train()
    file = io.BytesIO()
    torch.onnx.export(
        network,
        batch,
        file,
        opset_version=OPSET,
        dynamo=False,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        output_names=["loss"],
    )
    names = [name for name, _ in network.named_parameters()]
    model = onnx.load_from_string(file.getvalue())
    artifacts.generate_artifacts(model, requires_grad=names, artifact_directory=folder)
    return onnx.load(Path(folder) / "training_model.onnx")


torch.manual_seed(0)
words, label = torch.randint(48, (2, 8)), torch.randint(48, (2, 8))
encoder = through_ortmodule(Encoder(), (words, torch.ones(2, 8, dtype=torch.long), label))
onnx.save(encoder, FOLDER / f"encoder_training_opset{OPSET}.onnx")
(FOLDER / "artifacts").mkdir(exist_ok=True)
gated = through_artifacts(Gated(), (torch.randn(4, 16), torch.randint(8, (4,))), FOLDER / "artifacts")
onnx.save(gated, FOLDER / f"gated_training_opset{OPSET}.onnx")
