"""Measures the time of a model on this machine by layer, its uncertainty, and the load by other programs."""
