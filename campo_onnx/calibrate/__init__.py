"""Costs of nodes and Casts on a device."""
