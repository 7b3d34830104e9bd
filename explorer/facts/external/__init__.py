"""External figures, beside the layers: those of a file, a machine, and the providers that run them."""
