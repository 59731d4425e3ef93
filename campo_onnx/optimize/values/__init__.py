"""What the values of a step are known to be, and the nodes that would lose one in a low precision."""
