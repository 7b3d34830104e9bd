"""Measuring this machine: kernels that are timed alone (`kernels`), in a time that is given (`machine`)."""
