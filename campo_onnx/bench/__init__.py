"""Timing graphs against each other: whole training steps, in turns, on the same data."""
