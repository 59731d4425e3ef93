"""A report to open: one HTML file that holds every decision, and needs no network."""
