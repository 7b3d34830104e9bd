"""The numbers inside tensors: weights as stored, and activations as a run computes them.

At most one slab of a tensor is in memory: a weight is read from its file, and an activation is measured when
it is computed and then discarded.
"""
