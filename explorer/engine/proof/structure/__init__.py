"""Proves structural equality without a run: which elements are multiplied and added."""
