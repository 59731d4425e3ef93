"""Op lists: which operators may run in low precision, and the patterns that refine them."""
