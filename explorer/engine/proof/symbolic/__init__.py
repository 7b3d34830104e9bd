"""Executes a tiled graph on symbols, which show from which products each output element was computed."""
