"""Activation memory over time, and the roofline model."""
