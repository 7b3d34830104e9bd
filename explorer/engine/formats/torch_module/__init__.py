"""Loading an nn.Module, and finding its inputs."""
