"""Deciding each node's precision, and writing the decision into the graph."""
