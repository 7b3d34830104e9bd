"""Opened models of PyTorch, by kind."""
