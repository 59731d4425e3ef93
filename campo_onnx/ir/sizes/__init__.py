"""Graphs of any size: learned from graphs of some sizes, written to a file, and bound to sizes again."""
