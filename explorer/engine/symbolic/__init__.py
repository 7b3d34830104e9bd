"""Symbolic sizes: dimensions, expressions, and their notation."""
