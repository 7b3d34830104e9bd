"""Measured time in words, layer by layer."""
