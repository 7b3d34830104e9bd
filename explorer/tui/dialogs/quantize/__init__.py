"""Dialogs about number formats: which are to be taken, and what they did."""
