"""Passes from ONNX to ONNX: the form of a graph that one target runs best."""
