"""What a node and a Cast cost on a device."""
