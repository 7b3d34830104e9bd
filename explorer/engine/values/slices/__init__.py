"""Slices of a tensor: the numbers of a part, read without the rest, and the whole drawn small."""
