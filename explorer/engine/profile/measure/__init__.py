"""Measures this machine: kernels timed alone (`kernels`), within a time limit (`machine`)."""
