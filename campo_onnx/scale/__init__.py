"""Many tasks: on this machine or on a Ray cluster, each done once, kept as soon as it is done."""
