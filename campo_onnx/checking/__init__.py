"""Checks of a mixed-precision graph against the FP32 graph it was made from, for CI."""
