"""Targets: hardware with a runtime on it, the time of a node there, and what this machine has."""
