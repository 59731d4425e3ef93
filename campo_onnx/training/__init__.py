"""Training with mixed-precision graphs: a step loop, loss scaling, and FP16 numerics on a CPU."""
