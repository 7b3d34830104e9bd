"""Writes a planned tiling as nodes of a graph."""
