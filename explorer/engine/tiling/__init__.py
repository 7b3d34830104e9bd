"""Tiling: takes a graph and returns a new one; nothing here changes its input."""
