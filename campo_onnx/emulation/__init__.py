"""Low precision computed in FP32 with rounding in between, and the error that it makes."""
