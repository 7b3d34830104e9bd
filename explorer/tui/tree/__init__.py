"""The layer tree."""
