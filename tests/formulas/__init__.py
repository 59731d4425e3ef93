"""Formulas that real models compute, on awkward data, optimized and held against FP64."""
