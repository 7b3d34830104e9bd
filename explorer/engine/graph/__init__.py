"""The intermediate representation (IR): a model as a graph of nodes, values and tensors, for every format."""
