"""Figures of numbers that come in slabs: moments, histogram, quantiles."""
