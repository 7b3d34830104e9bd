"""Tiled matmuls, run alone."""
