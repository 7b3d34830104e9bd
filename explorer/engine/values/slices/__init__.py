"""Slices of a tensor: the numbers of a part, read without the remaining numbers, and heat maps."""
