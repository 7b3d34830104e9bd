"""Costs of a whole graph: layer tree, memory, operator statistics; of one operator see `engine.operators`."""
