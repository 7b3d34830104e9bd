"""Files with tensors only."""
