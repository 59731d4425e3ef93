"""Random training graphs, and what must hold of every one of them."""
