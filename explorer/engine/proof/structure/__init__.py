"""Structural equality: which elements are multiplied, shown without a run."""
