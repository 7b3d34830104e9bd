"""Sweeps: what to combine, and a table of what was tried beside its Pareto front."""
