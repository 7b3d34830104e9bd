"""Elements as symbols: what a block of a tensor is made of."""
