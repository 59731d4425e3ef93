"""The same networks out of PyTorch, JAX and ORTModule."""
