"""Convert a model with onnxconverter-common: ``run_onnxconverter.py MODEL OUTPUT``."""

import sys

import onnx
from onnxconverter_common import float16

model, output = sys.argv[1:]
onnx.save(float16.convert_float_to_float16(onnx.load(model), keep_io_types=True), output)
