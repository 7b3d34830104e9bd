"""The IR: a model as a graph of nodes, values and tensors, whatever it was read from."""
