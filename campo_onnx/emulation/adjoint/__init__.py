"""The derivative of a step: one rule for each operator, and the graph that applies them in reverse."""
