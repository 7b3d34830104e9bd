"""Quantization: a number format for weights, inputs and biases of chosen layers, and what it does to them."""
