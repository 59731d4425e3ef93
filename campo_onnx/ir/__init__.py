"""Reading, describing and writing ONNX graphs."""
