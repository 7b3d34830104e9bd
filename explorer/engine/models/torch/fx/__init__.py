"""torch.fx: an nn.Module as the graph of nodes that its tracer records."""
