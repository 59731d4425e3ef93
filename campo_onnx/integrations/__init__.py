"""Programs of others that meet plans: ORTModule, torch.compile, and a training step tried beside torch's."""
