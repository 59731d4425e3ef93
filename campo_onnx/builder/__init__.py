"""An ONNX graph under construction, and constructors that write it with as few nodes as it takes."""
