"""The claims about campo-onnx, a module each; ``python -m benchmarks.CLAIM`` in the root runs one."""
