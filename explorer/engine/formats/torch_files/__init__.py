"""Files of PyTorch, read as data: nothing in them runs."""
