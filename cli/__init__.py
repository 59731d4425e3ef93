"""The command line of campo-onnx; ``pyproject.toml`` gives the name of the package it ships as."""
