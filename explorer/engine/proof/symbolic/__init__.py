"""Symbolic execution: the composition of the blocks of a tensor."""
