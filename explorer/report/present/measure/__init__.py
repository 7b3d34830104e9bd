"""Measured times of layers and machines."""
