"""Running graphs: the only place that imports ONNX Runtime."""
