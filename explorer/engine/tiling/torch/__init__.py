"""Tiling of nn.Modules: replaces torch layers by layers that multiply by tiles."""
