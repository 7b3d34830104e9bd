"""The layer tree and its edges as a graph to look at: what is folded, and where each box stands."""
