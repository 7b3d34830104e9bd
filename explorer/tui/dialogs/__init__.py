"""Screens that stand above the main one."""
