"""Models that people train: what the exporter takes, and how exact its steps are."""
