"""Costs of a whole graph: layer tree, memory, operator statistics. `engine.operators` covers one operator."""
