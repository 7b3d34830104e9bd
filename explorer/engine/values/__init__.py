"""The numbers inside tensors: weights as stored, activations as a run produces them.

Nothing here holds more of a tensor than a slab: a weight is read from its file, an activation is measured
when it is computed and then discarded.
"""
