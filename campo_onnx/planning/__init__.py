"""One strategy on a graph, every strategy, every low precision: options in, plans out."""
