"""Training steps of other frameworks as ONNX graphs of standard operators."""
