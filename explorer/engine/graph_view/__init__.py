"""Graph view, the layer tree and its edges to look at: what is folded, and where each box stands."""
