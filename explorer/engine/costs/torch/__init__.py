"""Traces an nn.Module on shapes and computes the costs of its layers."""
