"""Graph in, facts out: costs, memory, the layer tree, operator statistics."""
