"""Computes the activation memory over time, and the roofline model."""
