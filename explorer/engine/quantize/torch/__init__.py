"""Quantization of nn.Modules: the layers that can take a number format, and the copy with rounded layers."""
