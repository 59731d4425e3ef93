"""The files of the first ten minutes: one network, as people bring it.

One layer of an image network and of a perceptron each, exported, differentiated, converted by ONNX Runtime's
tools. Needs torch; the walk itself does not.
"""

from pathlib import Path

import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers.float16 import convert_float_to_float16

from campo_onnx.export.torch import AdamW, export_training_step

NAMES = ("inference", "gradients", "whole", "unscaled", "half", "mixed", "quantized")
"""Files that :func:`write_models` makes."""


def write_models(folder: Path) -> None:
    """Write every kind of file into a folder."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(1024, 2048),
        torch.nn.ReLU(),
        torch.nn.Linear(2048, 2048),
        torch.nn.ReLU(),
        torch.nn.Linear(2048, 10),
    )
    batch = torch.randn(128, 1024), torch.randint(0, 10, (128,))
    loss = torch.nn.functional.cross_entropy
    step = (network, loss, *batch)
    export_training_step(*step, path=folder / "gradients.onnx")
    export_training_step(*step, path=folder / "whole.onnx", optimizer=AdamW())
    export_training_step(*step, path=folder / "unscaled.onnx", loss_scale=False)
    inference = folder / "inference.onnx"
    torch.onnx.export(network, (batch[0],), inference, dynamo=True, external_data=False, verbose=False)
    model = onnx.load(inference)
    onnx.save(convert_float_to_float16(model), folder / "half.onnx")
    mixed = convert_float_to_float16(model, keep_io_types=True, op_block_list=["Relu"])
    onnx.save(mixed, folder / "mixed.onnx")
    del model.graph.value_info[:]  # of transposed weights: the quantizer takes them for a contradiction
    quantize_dynamic(model, folder / "quantized.onnx", weight_type=QuantType.QInt8)
