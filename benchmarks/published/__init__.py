"""Speed-ups by low precision that others published, beside predictions for the same networks."""
