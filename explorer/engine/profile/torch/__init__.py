"""Time of nn.Modules: torch's profiler over ranges of their calls, its events as rows of the tree."""
