"""Values of a step, and the nodes that would lose one in a low precision."""
