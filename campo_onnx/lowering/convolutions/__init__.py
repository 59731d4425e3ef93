"""Convolutions and their gradients in several forms: each layer takes the one predicted to be fastest."""
