"""Cost of every node and Cast of a graph on a device, with the source of each figure."""
