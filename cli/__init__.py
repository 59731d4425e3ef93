"""The command line of campo-onnx; ships as the package ``campo_onnx_cli``."""
