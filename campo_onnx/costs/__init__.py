"""What every node and Cast of a graph costs on a device, and where that figure comes from."""
