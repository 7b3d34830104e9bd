"""Readers of model files. Nothing here counts, runs or proves."""
