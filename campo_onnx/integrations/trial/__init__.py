"""A training step of the user's, exported, planned, measured here, and predicted for devices elsewhere."""
