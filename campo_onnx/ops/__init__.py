"""Facts about operators, each stated once."""
