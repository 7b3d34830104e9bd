"""Comparisons in words: what differs between two models, and whether they compute the same."""
