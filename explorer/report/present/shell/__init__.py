"""Text output of commands about the program: cache, list, machines, history."""
