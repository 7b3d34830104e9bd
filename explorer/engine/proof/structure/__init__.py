"""Structural equality: what meets what, told without a run."""
