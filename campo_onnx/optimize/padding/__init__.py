"""Zero padding of matrix products: what fits, what pays, and writing it."""
