"""Facts as text on a terminal, a file an answer."""
