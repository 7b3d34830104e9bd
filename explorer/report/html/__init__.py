"""One page about a model, for a browser."""
