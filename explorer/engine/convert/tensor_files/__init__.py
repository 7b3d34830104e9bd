"""Conversion between formats of tensor files."""
