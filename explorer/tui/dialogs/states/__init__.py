"""Dialogs about states: the history, and the figures of several beside each other."""
