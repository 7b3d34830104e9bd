"""Editing of a graph by hand: nodes and values renamed, attributes set, nodes deleted, operators replaced.

A step is checked before it is taken, against the model and the schema of the operator, and makes another
model; what is not named stays as it is, byte for byte.
"""
