"""Model outputs: comparison of whole models."""
