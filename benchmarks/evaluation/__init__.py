"""Parts of the paper's evaluation: predictions, measured steps, single nodes, other converters."""
