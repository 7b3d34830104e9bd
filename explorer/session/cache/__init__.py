"""Packed rows of a layer tree, and the cache that keeps analyses between sessions."""
