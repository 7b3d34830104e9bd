"""Figures from elsewhere, beside the layers: those of a file, and the providers that run them."""
