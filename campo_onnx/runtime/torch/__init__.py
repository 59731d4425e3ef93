"""PyTorch: steps as graphs of its operations, which its compiler (TorchInductor) fuses and runs."""
