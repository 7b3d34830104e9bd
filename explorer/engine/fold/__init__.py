"""Folds batch normalization into weights and constant nodes into tensors, and removes no-ops."""
