"""Verbs that run a model and measure it."""
