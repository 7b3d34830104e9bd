"""A planned tiling as nodes of a graph."""
