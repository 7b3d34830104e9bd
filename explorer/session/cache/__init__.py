"""Rows of a layer tree packed into pages, and what is kept of models from session to session."""
