"""Verbs about number formats."""
