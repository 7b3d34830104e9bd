"""Compares models with each other, and with the figures of other tools."""
