"""Shapes of an operator's outputs, by operator."""
