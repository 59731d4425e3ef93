"""What is known about operators, each fact once."""
