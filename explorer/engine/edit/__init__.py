"""Manual edits of a graph: rename nodes and values, set attributes, delete nodes, replace operators.

Each step is checked against the model and the operator's schema, and returns a new model. Everything that the
step does not name stays the same, byte for byte.
"""
