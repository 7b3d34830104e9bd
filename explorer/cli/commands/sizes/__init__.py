"""Verbs over open sizes: curves, and decode steps."""
