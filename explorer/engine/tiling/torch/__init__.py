"""Tiling of nn.Modules: torch's layers replaced by ones that multiply by tiles."""
