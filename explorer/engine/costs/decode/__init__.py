"""Computes the costs of decoding: one decode step, with the cache that it reads."""
