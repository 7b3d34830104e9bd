"""Tensor files: one kind into another."""
