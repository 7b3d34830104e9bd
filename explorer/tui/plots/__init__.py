"""Plots that are looked at by themselves: figures over open sizes, and decode steps."""
