"""PyTorch files, read as data: no code in them runs."""
