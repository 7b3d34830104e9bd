"""Loads an nn.Module by name or object, and finds its inputs."""
