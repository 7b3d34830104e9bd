"""Comparison of models with each other, and with the numbers that other tools print."""
