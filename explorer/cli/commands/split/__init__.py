"""Verbs that take models apart."""
