"""Graph view: a drawing of the layer tree and its edges, with folded groups and the position of each box."""
