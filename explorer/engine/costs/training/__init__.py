"""Costs of a training step."""
