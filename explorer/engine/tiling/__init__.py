"""Tiling: graph in, new graph out: nothing here changes the model it is given."""
