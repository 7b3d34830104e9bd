"""Folding: batch normalization into weights, constant computations into tensors, no-ops removed."""
