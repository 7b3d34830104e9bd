"""Figures of numbers that arrive in slabs: moments, histogram, quantiles."""
