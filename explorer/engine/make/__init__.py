"""Models of exercises, made from a line of text: a product, a convolution, a small network."""
