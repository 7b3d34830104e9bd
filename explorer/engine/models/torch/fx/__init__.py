"""Traces an nn.Module with torch.fx as a graph of nodes."""
