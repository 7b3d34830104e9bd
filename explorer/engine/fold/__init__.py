"""Folding: batch normalization into weights, constants into tensors, what does nothing away."""
