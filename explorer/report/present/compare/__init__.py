"""Comparisons: the differences between two models, and proofs that they compute the same."""
