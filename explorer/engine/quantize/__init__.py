"""Quantization: a number format for weights, inputs and biases of chosen layers, and the errors it causes."""
