"""Dialogs about states of a model: the history, and a comparison of figures."""
