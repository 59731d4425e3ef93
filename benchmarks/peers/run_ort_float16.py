"""Convert a model with ONNX Runtime's converter: ``run_ort_float16.py MODEL OUTPUT``."""

import sys

import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16

model, output = sys.argv[1:]
onnx.save(convert_float_to_float16(onnx.load(model), keep_io_types=True), output)
