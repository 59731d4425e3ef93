"""ONNX Runtime: sessions, bindings, providers and traces."""
