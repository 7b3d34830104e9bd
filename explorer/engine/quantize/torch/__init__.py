"""Quantization of nn.Modules: the layers that take a number format, and the copy that rounds to it."""
