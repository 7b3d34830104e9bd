"""PyTorch files, read as data: nothing in them runs."""
