"""Convert a model with NVIDIA ModelOpt's AutoCast: ``run_autocast.py MODEL OUTPUT``.

It runs the graph on inputs of its own making: from a file it takes no scalars.
"""

import sys

import onnx
from modelopt.onnx.autocast import convert_to_mixed_precision

model, output = sys.argv[1:]
converted = convert_to_mixed_precision(
    onnx_path=model,
    low_precision_type="fp16",
    keep_io_types=True,
    providers=["cpu"],
)
onnx.save(converted, output)
