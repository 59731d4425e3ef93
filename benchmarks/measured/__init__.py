"""Training steps measured in BF16 on this machine's units, in turns with torch's."""
