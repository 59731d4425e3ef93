"""Random small networks of torch, whose exported steps are held against torch in double."""
