"""What the paper's evaluation is made of: predictions, measured steps, single nodes, other converters."""
