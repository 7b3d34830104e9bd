"""Costs of ATen operators."""
