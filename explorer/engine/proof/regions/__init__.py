"""Tests the changed regions of two models."""
