"""Hardware: public figures of processors, and assumptions that no data sheet states."""
