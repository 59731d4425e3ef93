"""Frameworks that build the training graph themselves, and let a plan in on the way."""
