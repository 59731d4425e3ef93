"""Ranges of tensors' values, and their propagation through every operator."""
