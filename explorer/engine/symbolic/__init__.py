"""Sizes that are not numbers: dimensions, expressions, how they are written."""
