"""Integer arithmetic: chains of integer layers, sums that fit 16 bits, and bias correction."""
