"""Symbolic execution: what a block of a tensor is made of."""
