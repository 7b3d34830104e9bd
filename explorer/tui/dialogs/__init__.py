"""Dialogs: screens that stand above the main one."""
