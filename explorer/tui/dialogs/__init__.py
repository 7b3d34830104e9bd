"""Dialogs and screens that are shown above the main screen."""
