"""Computes the costs of a graph: layer tree, memory, statistics. `engine.operators` has the operators."""
