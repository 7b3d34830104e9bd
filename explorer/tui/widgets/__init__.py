"""Widgets: the parts of the screen."""
