"""The program on files that are broken or hostile, and killed at any point."""
