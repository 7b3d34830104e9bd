"""Runs each tiled matmul alone and compares its output with a reference."""
