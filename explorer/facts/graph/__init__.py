"""Facts of a model as a graph: what feeds what."""
