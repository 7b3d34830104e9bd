"""Measures the time of nn.Modules with torch's profiler.

Each call of a submodule is a range of the profiler. The events become times of the rows of the layer tree.
"""
