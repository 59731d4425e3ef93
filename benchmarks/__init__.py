"""What is claimed of campo-onnx, one module a claim: ``python -m benchmarks.CLAIM`` from the project's root."""
