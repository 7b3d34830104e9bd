"""Readers: what a file holds. Nothing here counts, runs or proves."""
