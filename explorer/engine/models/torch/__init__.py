"""Opened models of PyTorch, by source."""
