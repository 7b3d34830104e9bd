"""Runs of tiled matmuls alone."""
