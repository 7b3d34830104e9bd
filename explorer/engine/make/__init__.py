"""Creates small models from a line of text: a matrix product, a convolution, a small network."""
