"""What is known of the values of tensors, and what every operator makes of it."""
