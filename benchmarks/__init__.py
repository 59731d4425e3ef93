"""What is claimed of campo-onnx, a module a claim; ``python -m benchmarks.CLAIM`` in the root runs one."""
