"""Opens models of PyTorch, by source."""
