"""Finds the first layer in which two models differ."""
