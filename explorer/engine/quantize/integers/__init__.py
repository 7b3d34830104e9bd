"""Integer products: chains of them, sums that stay inside 16 bits, corrected biases."""
