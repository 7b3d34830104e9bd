"""Computes the costs of a training step."""
