"""Folding of a session's models, kind by kind, each a state."""
